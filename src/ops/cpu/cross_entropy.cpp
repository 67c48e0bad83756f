#include <cmath>
#include <limits>

#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

template <class T>
float max_of(const T* x, std::int64_t n) {
  auto most = broadcast(static_cast<float>(x[0]));
  for_each_vec(n, [&](std::int64_t i, auto lanes) {
    if constexpr (std::is_same_v<decltype(lanes), Whole>)
      most = cpu::max(most, load(x + i, lanes));
    else
      for (auto j = i; j < n; ++j) most = cpu::max(most, broadcast(static_cast<float>(x[j])));
  });
  return cpu::max(most);
}

/// The sum of exp(x - offset) over n numbers.
template <class T>
float sum_exp(const T* x, std::int64_t n, float offset) {
  Vec total{};
  for_each_vec(n, [&](std::int64_t i, auto lanes) {
    auto e = cpu::exp(load(x + i, lanes) - offset);
    if constexpr (std::is_same_v<decltype(lanes), Part>)
      for (auto j = lanes.count; j < vec_width; ++j) e[j] = 0.0F;  // the filled lanes count nothing
    total += e;
  });
  return cpu::sum(total);
}

/// log(sum(exp(x))) reading x once: by chunks that stay in the first-level cache, each with its own
/// maximum (Milakov & Gimelshein 2018, "Online normalizer calculation for softmax").
template <class T>
float log_sum_exp(const T* x, std::int64_t n) {
  constexpr std::int64_t chunk = 1024;
  float most = -std::numeric_limits<float>::infinity();
  float total = 0.0F;
  for (std::int64_t first = 0; first < n; first += chunk) {
    const auto count = std::min(chunk, n - first);
    const auto higher = std::max(most, max_of(x + first, count));
    total = total * std::exp(most - higher) + sum_exp(x + first, count, higher);
    most = higher;
  }
  return most + std::log(total);
}

/// x = scale * softmax(x), minus scale at the target.
template <class T>
void overwrite_by_gradient(T* x, std::int64_t n, std::int32_t target, float normalizer,
                           float scale) {
  const auto at_target = std::exp(static_cast<float>(x[target]) - normalizer);
  for_each_vec(n, [&](std::int64_t i, auto lanes) {
    store(x + i, cpu::exp(load(x + i, lanes) - normalizer) * scale, lanes);
  });
  x[target] = T((at_target - 1.0F) * scale);
}

template <class T>
void each_row(const Tensor& losses, const Tensor& logits, const Tensor& targets, float scale,
              WithGradient gradient) {
  const auto cols = logits.cols();
  const Rows<T> rows(logits);
  const auto* target = targets.as<std::int32_t>();
  auto* loss = losses.as<float>();
  for_each_block(logits.rows(), rows_per_block(cols), [&](std::int64_t first, std::int64_t last) {
    for (auto m = first; m < last; ++m) {
      auto* row = rows[m];
      loss[m] = 0.0F;
      if (target[m] < 0) {
        if (gradient == WithGradient::yes) std::fill_n(row, cols, T(0.0F));
        continue;
      }
      const auto normalizer = log_sum_exp(row, cols);
      loss[m] = normalizer - static_cast<float>(row[target[m]]);
      if (gradient == WithGradient::yes)
        overwrite_by_gradient(row, cols, target[m], normalizer, scale);
    }
  });
}

}  // namespace

void cross_entropy(Stream& stream, Tensor losses, Tensor logits, Tensor targets, float scale,
                   WithGradient gradient) {
  expects(losses.numel() == logits.rows() && targets.numel() == logits.rows(),
          "cross_entropy shapes");
  stream.run([=] {
    for (const auto target : targets.span<std::int32_t>())
      expects(target < logits.cols(), "target {} in a vocabulary of {}", target, logits.cols());
    with_type(logits.dtype(), [&]<class T>(std::type_identity<T>) {
      each_row<T>(losses, logits, targets, scale, gradient);
    });
  });
}

}  // namespace llamesh::ops::cpu
