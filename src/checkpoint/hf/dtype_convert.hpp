#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace llamesh::checkpoint {

/// The dtypes of safetensors files that can be read and written.
enum class StoredType : std::uint8_t { f32, bf16, f16 };

constexpr std::int64_t size_of(StoredType type) {
  return type == StoredType::f32 ? 4 : 2;
}

/// As a safetensors header spells it: F32, BF16, F16.
std::string_view name_of(StoredType type);
/// The type of such a name, if it is one of the three.
std::optional<StoredType> stored_type(std::string_view name);

/// values[i] = the i-th element at `from`, which may be unaligned. Exact.
void to_floats(StoredType type, const std::uint8_t* from, std::span<float> values);

/// The reverse: rounds to nearest even and stores at `to`, which may be unaligned. Returns how many
/// finite values were too large for the type and became infinite.
std::int64_t from_floats(StoredType type, std::span<const float> values, std::uint8_t* to);

}  // namespace llamesh::checkpoint
