#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace llamesh::checkpoint {

/// The types of numbers that safetensors files are read from and written in.
enum class StoredType : std::uint8_t { f32, bf16, f16 };

constexpr std::int64_t size_of(StoredType type) {
  return type == StoredType::f32 ? 4 : 2;
}

/// As a safetensors header spells it: F32, BF16, F16.
std::string_view name_of(StoredType type);
/// The type of such a name, if it is one of the three.
std::optional<StoredType> stored_type(std::string_view name);

/// values[i] = the i-th number at `from`, which may lie at any address. Exact.
void to_floats(StoredType type, const std::uint8_t* from, std::span<float> values);

/// The other way: rounds to nearest even and stores at `to`, at any address. Returns how many
/// finite numbers became infinite, having been too large for the type.
std::int64_t from_floats(StoredType type, std::span<const float> values, std::uint8_t* to);

}  // namespace llamesh::checkpoint
