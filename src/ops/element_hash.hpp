#pragma once

#include <cstdint>

#include "ops/on_device_too.hpp"

namespace llamesh::ops {

/// A number for each element in a tensor, row by row: `cols` in a row follow one another, and rows
/// begin `stride` apart.
struct ElementNumbers {
  std::uint64_t first = 0;
  std::int64_t cols = 1, stride = 1;

  LLAMESH_ON_DEVICE_TOO std::uint64_t operator[](std::int64_t i) const {
    return first + static_cast<std::uint64_t>(i / cols * stride + i % cols);
  }
};

/// Maps the bits one to one for each number, so that no change in one element keeps its hash.
LLAMESH_ON_DEVICE_TOO inline std::uint64_t hash_of_element(std::uint64_t number,
                                                           std::uint32_t bits) {
  auto hash = number * 0x9E3779B97F4A7C15U ^ bits;
  hash = (hash ^ (hash >> 32U)) * 0xD6E8FEB86659FD93U;
  hash = (hash ^ (hash >> 32U)) * 0xD6E8FEB86659FD93U;
  return hash ^ (hash >> 32U);
}

}  // namespace llamesh::ops
