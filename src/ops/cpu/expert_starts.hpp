#pragma once

#include <cstdint>
#include <span>

#include "core/error.hpp"
#include "core/tensor.hpp"

namespace llamesh::ops::cpu {

/// Returns the experts' first rows, which are checked, and behind them the number of rows.
inline std::span<const std::int32_t> starts_of(const Tensor& starts, std::int64_t rows) {
  const std::span<const std::int32_t> all = starts.span<std::int32_t>();
  expects(all.front() == 0 && all.back() == rows, "{} experts have rows {} to {} of {}",
          all.size() - 1, all.front(), all.back(), rows);
  for (std::size_t e = 0; e + 1 < all.size(); ++e)
    expects(all[e] <= all[e + 1], "expert {} has rows {} to {}", e, all[e], all[e + 1]);
  return all;
}

}  // namespace llamesh::ops::cpu
