#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace llamesh {

/// Philox4x32-10, a counter-based generator: its output is a pure function of (key, counter), so
/// any rank can draw any element without drawing earlier ones. Salmon et al., "Parallel random
/// numbers: as easy as 1, 2, 3", SC11.
std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t counter_high,
                                    std::uint64_t counter_low);

/// Returns a stable 64-bit hash of a name (FNV-1a), which gives every parameter its own random
/// stream.
std::uint64_t name_hash(std::string_view name);

/// Writes standard normal values for elements [first, first + count) in stream `(seed, name)`.
/// Element i has the same value on every rank. Uses Box-Muller on pairs of Philox words, and OpenMP
/// threads for long ranges.
void fill_normal(float* out, std::int64_t first, std::int64_t count, std::uint64_t seed,
                 std::string_view name, float stddev);

/// Writes values that are uniform in (-bound, bound), like fill_normal().
void fill_uniform(float* out, std::int64_t first, std::int64_t count, std::uint64_t seed,
                  std::string_view name, float bound);

}  // namespace llamesh
