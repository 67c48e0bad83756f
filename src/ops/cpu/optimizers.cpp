#include "ops/adamw_factors.hpp"
#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/stochastic_rounding.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

constexpr std::int64_t block_of_elements = 8192;  // their random words fit in an L1 cache

/// Returns null if no copy is requested.
bf16* copy_of(const Tensor& copy, std::int64_t count) {
  if (!copy) return nullptr;
  expects(copy.numel() == count, "a copy of {} numbers in {}", count, copy.numel());
  return copy.span<bf16>().data();
}

/// Random words for a block of elements; none for moments in fp32.
template <class Moment>
struct Words {
  Words(const RoundingBits& /*bits*/, std::int64_t /*first*/, std::int64_t /*last*/) {}
  template <class Lanes>
  void store_first(float* to, Vec x, std::int64_t /*i*/, Lanes lanes) const {
    store(to, x, lanes);
  }
  template <class Lanes>
  void store_second(float* to, Vec x, std::int64_t /*i*/, Lanes lanes) const {
    store(to, x, lanes);
  }
};

template <>
struct Words<bf16> {
  Words(const RoundingBits& bits, std::int64_t first, std::int64_t last) {
    fill_words_of_call(words, bits, first, last);
  }
  VecBits at(std::int64_t i) const {
    VecBits random;
    std::memcpy(&random, words + i, sizeof random);
    return random;
  }
  template <class Lanes>
  void store_first(bf16* to, Vec x, std::int64_t i, Lanes lanes) const {
    store_rounded(to, x, at(i), lanes);
  }
  template <class Lanes>
  void store_second(bf16* to, Vec x, std::int64_t i, Lanes lanes) const {
    store_rounded(to, x, at(i) >> 16U, lanes);
  }
  std::uint32_t words[block_of_elements + vec_width];  // the last vector may be partial
};

template <class Moment>
void adamw_in_blocks(const AdamwCall& call, const AdamwFactors& factors) {
  auto* p = call.parameter.span<float>().data();
  auto* m = call.exp_avg.span<Moment>().data();
  auto* v = call.exp_avg_sq.span<Moment>().data();
  const auto* g = call.gradient.span<float>().data();
  const auto count = call.parameter.numel();
  auto* const rounded = copy_of(call.copy, count);
  for_each_block(count, block_of_elements, [&](std::int64_t first, std::int64_t last) {
    const Words<Moment> words(call.rounding, first, last);
    for_each_vec(last - first, [&](std::int64_t offset, auto lanes) {
      const auto i = first + offset;
      const auto slope = load(g + i, lanes) * factors.gradient_scale;
      const auto old = load(m + i, lanes);
      const auto mean = old + (slope - old) * factors.one_minus_beta1;
      const auto square =
          load(v + i, lanes) * factors.beta2 + slope * slope * factors.one_minus_beta2;
      const auto root = cpu::sqrt(square) * factors.root_correction + factors.eps;
      words.store_first(m + i, mean, offset, lanes);
      words.store_second(v + i, square, offset, lanes);
      const auto updated = load(p + i, lanes) * factors.kept - factors.step_size * mean / root;
      store(p + i, updated, lanes);
      if (rounded) store(rounded + i, updated, lanes);
    });
  });
}

}  // namespace

void adamw(Stream& stream, const AdamwCall& call, const AdamwStep& step) {
  const auto count = call.parameter.numel();
  expects(call.exp_avg.numel() == count && call.exp_avg_sq.numel() == count &&
              call.gradient.numel() == count,
          "adamw on tensors of {}, {}, {} and {} numbers", count, call.exp_avg.numel(),
          call.exp_avg_sq.numel(), call.gradient.numel());
  stream.run([=, factors = factors_of(step)] {
    with_type(call.exp_avg.dtype(), [&]<class Moment>(std::type_identity<Moment>) {
      adamw_in_blocks<Moment>(call, factors);
    });
  });
}

void sgd(Stream& stream, const SgdCall& call, const SgdStep& step) {
  const auto count = call.parameter.numel();
  expects(call.momentum_buffer.numel() == count && call.gradient.numel() == count,
          "sgd on tensors of {}, {} and {} numbers", count, call.momentum_buffer.numel(),
          call.gradient.numel());
  stream.run([=] {
    auto* p = call.parameter.span<float>().data();
    auto* b = call.momentum_buffer.span<float>().data();
    const auto* g = call.gradient.span<float>().data();
    auto* const rounded = copy_of(call.copy, count);
    for_each_block(count, block_of_elements, [&](std::int64_t first, std::int64_t last) {
      for_each_vec(last - first, [&](std::int64_t offset, auto lanes) {
        const auto i = first + offset;
        const auto old = load(p + i, lanes);
        const auto slope = load(g + i, lanes) * step.gradient_scale + old * step.weight_decay;
        const auto momentum = load(b + i, lanes) * step.momentum + slope;
        store(b + i, momentum, lanes);
        const auto updated = old - momentum * step.lr;
        store(p + i, updated, lanes);
        if (rounded) store(rounded + i, updated, lanes);
      });
    });
  });
}

void scaled_difference(Stream& stream, Tensor y, Tensor a, Tensor b, float factor) {
  const auto count = y.numel();
  expects(a.numel() == count && b.numel() == count, "{} - {} numbers into {}", a.numel(), b.numel(),
          count);
  stream.run([=] {
    auto* to = y.span<float>().data();
    const auto* from = a.span<float>().data();
    const auto* less = b.span<float>().data();
    for_each_block(count, block_of_elements, [&](std::int64_t first, std::int64_t last) {
      for_each_vec(last - first, [&](std::int64_t offset, auto lanes) {
        const auto i = first + offset;
        store(to + i, (load(from + i, lanes) - load(less + i, lanes)) * factor, lanes);
      });
    });
  });
}

void outer_step(Stream& stream, const OuterCall& call, const OuterStep& step) {
  const auto count = call.outer.numel();
  expects(call.difference.numel() == count && call.parameter.numel() == count &&
              (!call.momentum || call.momentum.numel() == count),
          "outer_step on tensors of {}, {} and {} numbers", count, call.difference.numel(),
          call.parameter.numel());
  stream.run([=] {
    auto* w = call.outer.span<float>().data();
    auto* b = call.momentum ? call.momentum.span<float>().data() : nullptr;
    auto* p = call.parameter.span<float>().data();
    const auto* d = call.difference.span<float>().data();
    auto* const rounded = copy_of(call.copy, count);
    for_each_block(count, block_of_elements, [&](std::int64_t first, std::int64_t last) {
      for_each_vec(last - first, [&](std::int64_t offset, auto lanes) {
        const auto i = first + offset;
        auto slope = load(d + i, lanes);
        if (b) {
          const auto momentum = load(b + i, lanes) * step.momentum + slope;
          store(b + i, momentum, lanes);
          slope = slope + momentum * step.momentum;
        }
        const auto outer = load(w + i, lanes) - slope * step.lr;
        store(w + i, outer, lanes);
        const auto updated = outer + (load(p + i, lanes) - outer) * step.local_share;
        store(p + i, updated, lanes);
        if (rounded) store(rounded + i, updated, lanes);
      });
    });
  });
}

namespace {

/// Rows mirrored together: whole cache lines on both sides.
constexpr std::int64_t mirrored_rows = 32;

template <class Moment>
void momentum_in_blocks(const MuonMomentumCall& call, const MuonMomentumStep& step) {
  auto* u = call.update.span<float>().data();
  auto* m = call.momentum.span<Moment>().data();
  const auto* g = call.gradient.span<float>().data();
  const float one_minus_beta = 1 - step.beta;
  for_each_block(call.update.numel(), block_of_elements,
                 [&](std::int64_t first, std::int64_t last) {
                   const Words<Moment> words(call.rounding, first, last);
                   for_each_vec(last - first, [&](std::int64_t offset, auto lanes) {
                     const auto i = first + offset;
                     const auto slope = load(g + i, lanes) * step.gradient_scale;
                     const auto old = load(m + i, lanes);
                     const auto mean = old + (slope - old) * one_minus_beta;
                     words.store_first(m + i, mean, offset, lanes);
                     store(u + i, step.nesterov ? slope + (mean - slope) * step.beta : mean, lanes);
                   });
                 });
}

}  // namespace

void muon_momentum(Stream& stream, const MuonMomentumCall& call, const MuonMomentumStep& step) {
  const auto count = call.update.numel();
  expects(call.momentum.numel() == count && call.gradient.numel() == count,
          "muon_momentum on tensors of {}, {} and {} numbers", count, call.momentum.numel(),
          call.gradient.numel());
  stream.run([=] {
    with_type(call.momentum.dtype(), [&]<class Moment>(std::type_identity<Moment>) {
      momentum_in_blocks<Moment>(call, step);
    });
  });
}

void matrix_quadratic(Stream& stream, Tensor squared, Tensor x, float a, float b, float c) {
  const auto k = x.rows();
  expects(
      x.cols() == k && squared.rows() == k && squared.cols() == k && x.dense() && squared.dense(),
      "matrix_quadratic of ({}, {}) and ({}, {})", squared.rows(), squared.cols(), k, x.cols());
  stream.run([=] {
    auto* const y = squared.as<float>();
    const auto* const from = x.as<float>();
    for_each_block(k, mirrored_rows, [&](std::int64_t first, std::int64_t last) {
      for (auto row = first; row < last; ++row) {
        const auto at = row * k;
        for_each_vec(row + 1, [&](std::int64_t i, auto lanes) {
          store(y + at + i, load(from + at + i, lanes) * b + load(y + at + i, lanes) * c, lanes);
        });
        y[at + row] += a;
      }
      for (std::int64_t col = 0; col < last; ++col)
        for (auto row = std::max(first, col + 1); row < last; ++row)
          y[col * k + row] = y[row * k + col];
    });
  });
}

}  // namespace llamesh::ops::cpu
