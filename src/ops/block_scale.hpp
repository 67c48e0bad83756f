#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "ops/fp8_scale.hpp"

namespace llamesh::ops {

/// By which a block is multiplied to become codes, and these to become the block.
struct BlockScale {
  float up, down;
};

/// Returns the scales of a block (see quantize_blocks()) from its largest magnitude as fp32 bits.
constexpr BlockScale block_scale(std::uint32_t largest, float largest_code) {
  constexpr auto nan = std::numeric_limits<float>::quiet_NaN();
  if (largest >= infinity_bits) return {nan, nan};
  const auto most = std::bit_cast<float>(largest);
  if (most < 1e-30F) return {0, 0};
  return {largest_code / most, most / largest_code};
}

}  // namespace llamesh::ops
