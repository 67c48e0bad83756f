#include <algorithm>
#include <cmath>

#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/scratch.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

/// scores[h * n + t] = q_h . key_t / score_divisor, capped, for the `group` heads that share these
/// keys.
template <class T>
void score(float* scores, const T* q, Rows<const T> keys, std::int64_t n, std::int64_t group,
           const AttentionShape& s) {
  const auto head_dim = s.head_dim;
  const float scale = 1.0F / s.score_divisor;
  for (std::int64_t t = 0; t < n; ++t)
    for (std::int64_t h = 0; h < group; ++h) {
      Vec dot{};
      for_each_vec(head_dim, [&](std::int64_t e, auto lanes) {
        dot += load(q + h * head_dim + e, lanes) * load(keys[t] + e, lanes);
      });
      scores[h * n + t] = scale * sum(dot);
    }
  if (s.softcap == 0) return;
  for_each_vec(n * group, [&](std::int64_t i, auto lanes) {
    store(scores + i, s.softcap * tanh(load(scores + i, lanes) * (1.0F / s.softcap)), lanes);
  });
}

/// Turns scores into weights that sum to 1. Returns log(sum(exp(score))).
float softmax(float* scores, std::int64_t n) {
  const float most = *std::max_element(scores, scores + n);
  float total = 0;
  for_each_vec(n, [&](std::int64_t t, auto lanes) {
    store(scores + t, exp(load(scores + t, lanes) - most), lanes);
  });
  for (std::int64_t t = 0; t < n; ++t) total += scores[t];
  const float factor = 1.0F / total;
  for (std::int64_t t = 0; t < n; ++t) scores[t] *= factor;
  return most + std::log(total);
}

/// out_h = sum over t of weights[h * n + t] value_t; `sums` holds group x V elements.
template <class T>
void mix(T* out, const float* weights, Rows<const T> values, float* sums, std::int64_t n,
         std::int64_t group, std::int64_t value_dim) {
  std::fill_n(sums, group * value_dim, 0.0F);
  for (std::int64_t t = 0; t < n; ++t)
    for (std::int64_t h = 0; h < group; ++h) {
      const float weight = weights[h * n + t];
      for_each_vec(value_dim, [&](std::int64_t e, auto lanes) {
        float* at = sums + h * value_dim + e;
        store(at, load(at, lanes) + weight * load(values[t] + e, lanes), lanes);
      });
    }
  for_each_vec(group * value_dim,
               [&](std::int64_t i, auto lanes) { store(out + i, load(sums + i, lanes), lanes); });
}

template <class T>
void attend(const AttentionCall& c, std::int64_t past) {
  const AttentionShape& s = c.shape;
  const auto group = s.heads / s.kv_heads;
  const auto attend_one = [&](std::int64_t i, std::int64_t kv_head) {
    const auto end = past + i + 1;
    const auto begin = s.window > 0 ? std::max<std::int64_t>(0, end - s.window) : 0;
    const auto n = end - begin;
    const auto first = kv_head * group;
    thread_local static Scratch scratch;
    auto* scores = scratch.array<float>(group * (n + s.value_dim));
    score(scores, Rows<const T>(c.q)[i] + first * s.head_dim,
          Rows<const T>(c.k).from(begin, kv_head * s.head_dim), n, group, s);
    for (std::int64_t h = 0; h < group; ++h) {
      const float log_sum_exp = softmax(scores + h * n, n);
      if (c.log_sum_exp) c.log_sum_exp.as<float>()[(first + h) * s.sequence + i] = log_sum_exp;
    }
    mix(Rows<T>(c.out)[i] + first * s.value_dim, scores,
        Rows<const T>(c.v).from(begin, kv_head * s.value_dim), scores + group * n, n, group,
        s.value_dim);
  };
  // Batches several heads per task while the sequence is short: waking a team would take longer
  // than the work.
  const auto count = s.sequence * s.kv_heads;
  const auto keys_of_all = past + s.sequence;
  const auto longest = s.window > 0 ? std::min(s.window, keys_of_all) : keys_of_all;
  const auto together = rows_per_block(longest * group * s.head_dim, 65536);
  for_each_task((count + together - 1) / together, [&](std::int64_t task) {
    const auto last = std::min(count, (task + 1) * together);
    for (auto one = task * together; one < last; ++one)
      attend_one(one / s.kv_heads, one % s.kv_heads);
  });
}

}  // namespace

void cached_attention(Stream& stream, const AttentionCall& c, std::int64_t past) {
  const AttentionShape& s = c.shape;
  expects(s.batch == 1 && c.q.rows() == s.sequence && c.k.rows() >= past + s.sequence &&
              c.k.rows() == c.v.rows() && c.out.rows() == c.q.rows() &&
              c.q.cols() == s.heads * s.head_dim && c.out.cols() == s.heads * s.value_dim &&
              c.k.cols() == s.kv_heads * s.head_dim && c.v.cols() == s.kv_heads * s.value_dim &&
              (!c.log_sum_exp || c.log_sum_exp.numel() == s.heads * s.sequence),
          "cached attention: {} queries after {}, {} keys", c.q.rows(), past, c.k.rows());
  stream.run(
      [=] { with_type(c.q.dtype(), [&]<class T>(std::type_identity<T>) { attend<T>(c, past); }); });
}

}  // namespace llamesh::ops::cpu
