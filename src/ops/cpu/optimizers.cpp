#include "ops/adamw_factors.hpp"
#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

constexpr std::int64_t block_of_elements = 16384;

}  // namespace

void adamw(Stream& stream, Tensor parameter, Tensor exp_avg, Tensor exp_avg_sq, Tensor gradient,
           const AdamwStep& step) {
  const auto count = parameter.numel();
  expects(exp_avg.numel() == count && exp_avg_sq.numel() == count && gradient.numel() == count,
          "adamw on tensors of {}, {}, {} and {} numbers", count, exp_avg.numel(),
          exp_avg_sq.numel(), gradient.numel());
  stream.run([=, factors = factors_of(step)] {
    auto* p = parameter.span<float>().data();
    auto* m = exp_avg.span<float>().data();
    auto* v = exp_avg_sq.span<float>().data();
    const auto* g = gradient.span<float>().data();
    for_each_block(count, block_of_elements, [&](std::int64_t first, std::int64_t last) {
      for_each_vec(last - first, [&](std::int64_t offset, auto lanes) {
        const auto i = first + offset;
        const auto slope = load(g + i, lanes) * factors.gradient_scale;
        const auto old = load(m + i, lanes);
        const auto mean = old + (slope - old) * factors.one_minus_beta1;
        const auto square =
            load(v + i, lanes) * factors.beta2 + slope * slope * factors.one_minus_beta2;
        const auto root = cpu::sqrt(square) * factors.root_correction + factors.eps;
        store(m + i, mean, lanes);
        store(v + i, square, lanes);
        store(p + i, load(p + i, lanes) * factors.kept - factors.step_size * mean / root, lanes);
      });
    });
  });
}

void sgd(Stream& stream, Tensor parameter, Tensor momentum_buffer, Tensor gradient,
         const SgdStep& step) {
  const auto count = parameter.numel();
  expects(momentum_buffer.numel() == count && gradient.numel() == count,
          "sgd on tensors of {}, {} and {} numbers", count, momentum_buffer.numel(),
          gradient.numel());
  stream.run([=] {
    auto* p = parameter.span<float>().data();
    auto* b = momentum_buffer.span<float>().data();
    const auto* g = gradient.span<float>().data();
    for_each_block(count, block_of_elements, [&](std::int64_t first, std::int64_t last) {
      for_each_vec(last - first, [&](std::int64_t offset, auto lanes) {
        const auto i = first + offset;
        const auto old = load(p + i, lanes);
        const auto slope = load(g + i, lanes) * step.gradient_scale + old * step.weight_decay;
        const auto momentum = load(b + i, lanes) * step.momentum + slope;
        store(b + i, momentum, lanes);
        store(p + i, old - momentum * step.lr, lanes);
      });
    });
  });
}

}  // namespace llamesh::ops::cpu
