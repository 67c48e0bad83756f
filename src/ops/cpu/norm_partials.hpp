#pragma once

#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {

/// dw (D), unless it is empty, = or += the sum of the blocks' partial gradients, block by block;
/// `stride` elements from one to the next.
template <class W>
void add_partials(const Tensor& dw, Accumulate accumulate, const float* partial,
                  std::int64_t blocks, std::int64_t stride) {
  if (!dw) return;
  auto* to = dw.as<W>();
  for_each_vec(dw.numel(), [&](std::int64_t i, auto lanes) {
    auto total = accumulate == Accumulate::yes ? load(to + i, lanes) : Vec{};
    for (std::int64_t b = 0; b < blocks; ++b) total += load(partial + b * stride + i, lanes);
    store(to + i, total, lanes);
  });
}

}  // namespace llamesh::ops::cpu
