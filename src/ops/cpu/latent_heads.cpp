#include <algorithm>

#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/scratch.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

/// Columns in a head's parts.
struct HeadColumns {
  explicit HeadColumns(const LatentHeads& c)
      : turns(c.k_rope.cols() / 2),
        half(c.k.cols() / c.heads / 2),
        values(c.v.cols() / c.heads),
        kv(2 * (half - turns) + values) {}
  std::int64_t turns;   ///< R / 2
  std::int64_t half;    ///< (N + R) / 2
  std::int64_t values;  ///< V
  std::int64_t kv;      ///< N + V

  std::int64_t unturned() const { return half - turns; }
};

void expect_shapes(const LatentHeads& c) {
  const HeadColumns head(c);
  expects(c.k.cols() == c.heads * 2 * head.half && c.k_rope.cols() == 2 * head.turns &&
              head.turns <= head.half && c.v.cols() == c.heads * head.values &&
              c.kv.cols() == c.heads * head.kv,
          "latent_heads: {} heads, kv of {} columns, k_rope of {}, k of {}, v of {}", c.heads,
          c.kv.cols(), c.k_rope.cols(), c.k.cols(), c.v.cols());
  expects(c.k.rows() == c.kv.rows() && c.v.rows() == c.kv.rows() && c.k_rope.rows() == c.kv.rows(),
          "latent_heads: {} tokens in kv, {} in k_rope, {} in k, {} in v", c.kv.rows(),
          c.k_rope.rows(), c.k.rows(), c.v.rows());
}

/// Calls body(m) for each token.
template <class Body>
void for_each_token(const LatentHeads& c, const Body& body) {
  for_each_block(c.k.rows(), rows_per_block(c.k.cols() + c.v.cols()),
                 [&](std::int64_t first, std::int64_t last) {
                   for (auto m = first; m < last; ++m) body(m);
                 });
}

/// sums += x
template <class T>
void add(float* sums, const T* x, std::int64_t n) {
  for_each_vec(n, [&](std::int64_t i, auto lanes) {
    store(sums + i, load(sums + i, lanes) + load(x + i, lanes), lanes);
  });
}

}  // namespace

void latent_heads(Stream& stream, const LatentHeads& c) {
  expect_shapes(c);
  stream.run([=] {
    with_type(c.k.dtype(), [&]<class T>(std::type_identity<T>) {
      const HeadColumns head(c);
      const auto turns = head.turns, unturned = head.unturned();
      const Rows<const T> all_kv(c.kv), all_rope(c.k_rope);
      const Rows<T> keys(c.k), values(c.v);
      for_each_token(c, [&](std::int64_t m) {
        const auto* const rope = all_rope[m];
        for (std::int64_t h = 0; h < c.heads; ++h) {
          const auto* const kv = all_kv[m] + h * head.kv;
          auto* const k = keys[m] + h * 2 * head.half;
          for (const std::int64_t side : {0, 1}) {
            auto* const to = k + side * head.half;
            std::copy_n(rope + side * turns, turns, to);
            std::copy_n(kv + side * unturned, unturned, to + turns);
          }
          std::copy_n(kv + 2 * unturned, head.values, values[m] + h * head.values);
        }
      });
    });
  });
}

void latent_heads_backward(Stream& stream, const LatentHeads& c) {
  expect_shapes(c);
  stream.run([=] {
    with_type(c.k.dtype(), [&]<class T>(std::type_identity<T>) {
      const HeadColumns head(c);
      const auto turns = head.turns, unturned = head.unturned();
      const Rows<T> all_kv(c.kv), all_rope(c.k_rope);
      const Rows<const T> keys(c.k), values(c.v);
      for_each_token(c, [&](std::int64_t m) {
        thread_local static Scratch scratch;
        auto* const sums = scratch.array<float>(2 * turns);
        std::fill_n(sums, 2 * turns, 0.0F);
        for (std::int64_t h = 0; h < c.heads; ++h) {
          auto* const kv = all_kv[m] + h * head.kv;
          const auto* const k = keys[m] + h * 2 * head.half;
          for (const std::int64_t side : {0, 1}) {
            const auto* const from = k + side * head.half;
            add(sums + side * turns, from, turns);
            std::copy_n(from + turns, unturned, kv + side * unturned);
          }
          std::copy_n(values[m] + h * head.values, head.values, kv + 2 * unturned);
        }
        for_each_vec(2 * turns, [&](std::int64_t i, auto lanes) {
          store(all_rope[m] + i, load(sums + i, lanes), lanes);
        });
      });
    });
  });
}

}  // namespace llamesh::ops::cpu
