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

/// Returns the sum of exp(x - offset) over n elements.
template <class T>
float sum_exp(const T* x, std::int64_t n, float offset) {
  Vec total{};
  for_each_vec(n, [&](std::int64_t i, auto lanes) {
    auto e = cpu::exp(load(x + i, lanes) - offset);
    if constexpr (std::is_same_v<decltype(lanes), Part>)
      for (auto j = lanes.count; j < vec_width; ++j) e[j] = 0.0F;  // ignore padding lanes
    total += e;
  });
  return cpu::sum(total);
}

/// A sum of exponentials, stored as total * exp(most), with `most` the largest exponent so far.
struct SumExp {
  float most = -std::numeric_limits<float>::infinity();
  float total = 0.0F;

  /// Adds more * exp(higher). `higher` is at least `most` and replaces it.
  void add(float higher, float more) {
    total = total * std::exp(most - higher) + more;
    most = higher;
  }
  float log() const { return most + std::log(total); }
};

/// Computes sum(exp(x)) in one pass over x, in chunks that stay in L1 cache, each with its own
/// maximum (Milakov & Gimelshein 2018, "Online normalizer calculation for softmax").
template <class T>
SumExp sum_exp(const T* x, std::int64_t n) {
  constexpr std::int64_t chunk = 1024;
  SumExp sum;
  for (std::int64_t first = 0; first < n; first += chunk) {
    const auto count = std::min(chunk, n - first);
    const auto higher = std::max(sum.most, max_of(x + first, count));
    sum.add(higher, sum_exp(x + first, count, higher));
  }
  return sum;
}

/// x = scale * softmax(x), minus scale at the target if it is among the n; times softcap()'s slope.
template <class T>
void overwrite_by_gradient(T* x, std::int64_t n, std::int64_t target, float normalizer, float scale,
                           const CrossEntropyCall& c) {
  const bool here = 0 <= target && target < n;
  const auto logit = here ? static_cast<float>(x[target]) : 0.0F;
  const auto cap = c.softcap > 0 ? 1.0F / c.softcap : 0.0F;
  const auto slope = [cap](auto x_i) { return 1.0F - x_i * cap * (x_i * cap); };
  for_each_vec(n, [&](std::int64_t i, auto lanes) {
    const Vec logits = load(x + i, lanes);
    Vec gradient = cpu::exp(logits - normalizer) * scale;
    if (cap > 0) gradient *= slope(logits);
    store(x + i, gradient, lanes);
  });
  if (!here) return;
  const auto at_target = (std::exp(logit - normalizer) - 1.0F) * scale;
  x[target] = T(cap > 0 ? at_target * slope(logit) : at_target);
}

/// A row's loss: normalizer - at_target.
struct RowLoss {
  float normalizer, at_target;
};

/// Computes losses, and gradients for classes from `vocab_start` on, from `of_row`'s result for
/// each row that is not ignored.
template <class T, class OfRow>
void each_row(const CrossEntropyCall& c, std::int64_t vocab_start, const OfRow& of_row) {
  const auto cols = c.logits.cols();
  const Rows<T> rows(c.logits);
  const auto* target = c.targets.as<std::int32_t>();
  auto* loss = c.losses.as<float>();
  const auto* factor = c.row_factors ? c.row_factors.as<float>() : nullptr;
  const auto scale_of = [&](std::int64_t m) { return factor ? c.scale * factor[m] : c.scale; };
  for_each_block(c.logits.rows(), rows_per_block(cols), [&](std::int64_t first, std::int64_t last) {
    for (auto m = first; m < last; ++m) {
      auto* row = rows[m];
      loss[m] = 0.0F;
      if (target[m] < 0) {
        if (c.gradient == WithGradient::yes) std::fill_n(row, cols, T(0.0F));
        continue;
      }
      const RowLoss of = of_row(m);
      loss[m] = of.normalizer - of.at_target;
      if (c.gradient == WithGradient::yes)
        overwrite_by_gradient(row, cols, target[m] - vocab_start, of.normalizer, scale_of(m), c);
    }
  });
}

/// Computes cross_entropy_part()'s output for each row.
template <class T>
void each_part(const Tensor& part, const Tensor& logits, const Tensor& targets,
               std::int64_t vocab_start) {
  const auto cols = logits.cols();
  const Rows<const T> rows(logits);
  const auto* target = targets.as<std::int32_t>();
  const Rows<float> to(part);
  for_each_block(logits.rows(), rows_per_block(cols), [&](std::int64_t first, std::int64_t last) {
    for (auto m = first; m < last; ++m) {
      std::fill_n(to[m], 3, 0.0F);
      if (target[m] < 0) continue;
      const auto sum = sum_exp(rows[m], cols);
      const auto own = target[m] - vocab_start;
      to[m][0] = sum.most;
      to[m][1] = sum.total;
      if (0 <= own && own < cols) to[m][2] = static_cast<float>(rows[m][own]);
    }
  });
}

/// Merges row m over all parts (t, rows, 3), in order.
RowLoss merged(const Rows<const float>& parts, std::int64_t t, std::int64_t rows, std::int64_t m) {
  SumExp sum;
  float at_target = 0.0F;
  for (std::int64_t p = 0; p < t; ++p) {
    const auto* part = parts[p * rows + m];
    const auto higher = std::max(sum.most, part[0]);
    sum.add(higher, part[1] * std::exp(part[0] - higher));
    at_target += part[2];
  }
  return {sum.log(), at_target};
}

}  // namespace

void cross_entropy(Stream& stream, const CrossEntropyCall& c) {
  expects(c.losses.numel() == c.logits.rows() && c.targets.numel() == c.logits.rows(),
          "cross_entropy shapes");
  stream.run([=] {
    const auto cols = c.logits.cols();
    for (const auto target : c.targets.span<std::int32_t>())
      expects(target < cols, "target {} in a vocabulary of {}", target, cols);
    with_type(c.logits.dtype(), [&]<class T>(std::type_identity<T>) {
      const Rows<const T> rows(c.logits);
      const auto* target = c.targets.as<std::int32_t>();
      each_row<T>(c, 0, [&](std::int64_t m) {
        return RowLoss{sum_exp(rows[m], cols).log(), static_cast<float>(rows[m][target[m]])};
      });
    });
  });
}

void cross_entropy_part(Stream& stream, Tensor part, Tensor logits, Tensor targets,
                        std::int64_t vocab_start) {
  expects(part.rows() == logits.rows() && part.cols() == 3 && targets.numel() == logits.rows(),
          "cross_entropy_part shapes");
  stream.run([=] {
    with_type(logits.dtype(), [&]<class T>(std::type_identity<T>) {
      each_part<T>(part, logits, targets, vocab_start);
    });
  });
}

void cross_entropy_from_parts(Stream& stream, const CrossEntropyCall& c, Tensor parts,
                              std::int64_t vocab_start) {
  const auto rows = c.logits.rows();
  const auto t = rows == 0 ? 0 : parts.rows() / rows;
  expects(c.losses.numel() == rows && c.targets.numel() == rows && parts.rows() == t * rows &&
              parts.cols() == 3 && (t > 0 || rows == 0),
          "cross_entropy_from_parts: {} rows of parts of {} tokens", parts.rows(), rows);
  stream.run([=] {
    with_type(c.logits.dtype(), [&]<class T>(std::type_identity<T>) {
      each_row<T>(c, vocab_start,
                  [&](std::int64_t m) { return merged(Rows<const float>(parts), t, rows, m); });
    });
  });
}

}  // namespace llamesh::ops::cpu
