#include "core/philox.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace llamesh {

std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t counter_high,
                                    std::uint64_t counter_low) {
  std::array<std::uint32_t, 4> c = {
      static_cast<std::uint32_t>(counter_low), static_cast<std::uint32_t>(counter_low >> 32U),
      static_cast<std::uint32_t>(counter_high), static_cast<std::uint32_t>(counter_high >> 32U)};
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32U);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53U} * c[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * c[2];
    c = {static_cast<std::uint32_t>(b >> 32U) ^ c[1] ^ k0, static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32U) ^ c[3] ^ k1, static_cast<std::uint32_t>(a)};
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return c;
}

std::uint64_t name_hash(std::string_view name) {
  std::uint64_t h = 0xcbf29ce484222325U;
  for (const char ch : name) h = (h ^ static_cast<unsigned char>(ch)) * 0x100000001b3U;
  return h;
}

namespace {

/// Writes elements [first, first + count) in stream `(seed, name)`. One Philox block gives the four
/// elements 4b .. 4b+3, which values_of(words) makes from it. All cores draw a model with billions
/// of parameters.
template <class ValuesOf>
void fill_blocks(float* out, std::int64_t first, std::int64_t count, std::uint64_t seed,
                 std::string_view name, ValuesOf values_of) {
  const std::uint64_t stream = name_hash(name);
  const std::int64_t first_block = first / 4;
  const std::int64_t last_block = (first + count + 3) / 4;
#pragma omp parallel for schedule(static) if (count >= 65536)
  for (std::int64_t block = first_block; block < last_block; ++block) {
    const std::array<float, 4> z =
        values_of(philox(seed, stream, static_cast<std::uint64_t>(block)));
    const std::int64_t begin = std::max(first, block * 4);
    const std::int64_t end = std::min(first + count, block * 4 + 4);
    for (std::int64_t i = begin; i < end; ++i)
      out[i - first] = z[static_cast<std::size_t>(i - block * 4)];
  }
}

double in_unit_interval(std::uint32_t word) {
  return (word + 0.5) * 0x1p-32;  // in (0, 1)
}

}  // namespace

void fill_normal(float* out, std::int64_t first, std::int64_t count, std::uint64_t seed,
                 std::string_view name, float stddev) {
  fill_blocks(out, first, count, seed, name, [stddev](const auto& words) {
    std::array<float, 4> z{};
    for (std::size_t pair = 0; pair < 2; ++pair) {
      const double radius = std::sqrt(-2.0 * std::log(in_unit_interval(words[2 * pair])));
      const double angle = 2.0 * std::numbers::pi * in_unit_interval(words[2 * pair + 1]);
      z[2 * pair] = stddev * static_cast<float>(radius * std::cos(angle));
      z[2 * pair + 1] = stddev * static_cast<float>(radius * std::sin(angle));
    }
    return z;
  });
}

void fill_uniform(float* out, std::int64_t first, std::int64_t count, std::uint64_t seed,
                  std::string_view name, float bound) {
  fill_blocks(out, first, count, seed, name, [bound](const auto& words) {
    std::array<float, 4> values{};
    for (std::size_t i = 0; i < 4; ++i)
      values[i] = bound * static_cast<float>(2 * in_unit_interval(words[i]) - 1);
    return values;
  });
}

}  // namespace llamesh
