#include <cmath>
#include <vector>

#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

/// Where a row's head has its numbers.
struct HeadsOfRows {
  std::int64_t heads, sequence, value_dim;

  explicit HeadsOfRows(const AttentionSinks& c)
      : heads(c.log_sum_exp.size(1)),
        sequence(c.log_sum_exp.size(2)),
        value_dim(c.out.cols() / heads) {}
  /// Returns the index in a (B, H, T) tensor.
  std::int64_t index(std::int64_t row, std::int64_t head) const {
    return (row / sequence * heads + head) * sequence + row % sequence;
  }
};

void check(const AttentionSinks& c) {
  expects(c.log_sum_exp.dims() == 3 && c.log_sum_exp.dense() && c.sinks.numel() > 0 &&
              c.sinks.numel() == c.log_sum_exp.size(1) && c.sinks.dtype() == c.out.dtype() &&
              c.out.rows() == c.log_sum_exp.size(0) * c.log_sum_exp.size(2) &&
              c.out.cols() % c.sinks.numel() == 0,
          "attention_sinks shapes");
}

template <class T>
void add_sinks(const AttentionSinks& c) {
  const HeadsOfRows at(c);
  const Rows<T> out(c.out);
  const auto* sinks = c.sinks.as<T>();
  auto* log_sum_exp = c.log_sum_exp.as<float>();
  for_each_block(c.out.rows(), rows_per_block(c.out.cols()), [&](auto first, auto last) {
    for (auto row = first; row < last; ++row)
      for (std::int64_t h = 0; h < at.heads; ++h) {
        float& sum = log_sum_exp[at.index(row, h)];
        const float above = static_cast<float>(sinks[h]) - sum;  // the sink's score
        const float share = 1 / (1 + std::exp(above));
        sum += above > 0 ? above + std::log1p(std::exp(-above)) : std::log1p(std::exp(above));
        auto* head = out[row] + h * at.value_dim;
        for_each_vec(at.value_dim, [&](std::int64_t i, auto lanes) {
          store(head + i, share * load(head + i, lanes), lanes);
        });
      }
  });
}

/// Each task sums up a head, row by row.
template <class T, class W>
void sum_gradients(const AttentionSinks& c, const AttentionSinksGradients& g) {
  const HeadsOfRows at(c);
  const Rows<const T> out(c.out), dout(g.dout);
  const auto* log_sum_exp = c.log_sum_exp.as<float>();
  for_each_task(at.heads, [&](std::int64_t h) {
    const auto sink = static_cast<float>(c.sinks.as<T>()[h]);
    float total = 0;
    for (std::int64_t row = 0; row < c.out.rows(); ++row) {
      Vec dots{};
      for_each_vec(at.value_dim, [&](std::int64_t i, auto lanes) {
        const auto e = h * at.value_dim + i;
        dots += load(out[row] + e, lanes) * load(dout[row] + e, lanes);
      });
      total -= std::exp(sink - log_sum_exp[at.index(row, h)]) * sum(dots);
    }
    auto* to = g.dsinks.as<W>() + h;
    if (g.accumulate == Accumulate::yes) total += static_cast<float>(*to);
    *to = W(total);
  });
}

}  // namespace

void attention_sinks(Stream& stream, const AttentionSinks& c) {
  check(c);
  stream.run(
      [=] { with_type(c.out.dtype(), [&]<class T>(std::type_identity<T>) { add_sinks<T>(c); }); });
}

void attention_sinks_backward(Stream& stream, const AttentionSinks& c,
                              const AttentionSinksGradients& g) {
  check(c);
  expects(same_matrix_shape(c.out, g.dout) && g.dsinks.numel() == c.sinks.numel(),
          "attention_sinks_backward shapes");
  stream.run([=] {
    with_type(c.out.dtype(), [&]<class T>(std::type_identity<T>) {
      with_type(g.dsinks.dtype(),
                [&]<class W>(std::type_identity<W>) { sum_gradients<T, W>(c, g); });
    });
  });
}

}  // namespace llamesh::ops::cpu
