#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "core/box.hpp"
#include "ops/calls.hpp"

namespace llamesh::optim {

/// Returns the random bits for rounding a parameter's moments at an optimizer step: key and stream,
/// without the elements. Pure: Philox itself draws them from (seed, name, step).
ops::RoundingBits rounding_stream(std::uint64_t seed, std::string_view name, std::int64_t step);

/// Visits elements [at, at + count) in a range, with their random bits.
using VisitRounded =
    std::function<void(std::int64_t at, std::int64_t count, const ops::RoundingBits& bits)>;

/// Splits a range in a part of `array` into ranges whose elements' indices in the array
/// RoundingBits can describe: one, unless the array is split along two dims below its first. Pure.
void for_each_rounded(const Shape& array, const BoxRange& range, const ops::RoundingBits& stream,
                      const VisitRounded& visit);

}  // namespace llamesh::optim
