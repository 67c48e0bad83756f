#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace llamesh::checkpoint {

/// Dtypes that can be read from and written to safetensors files.
enum class StoredType : std::uint8_t { f32, bf16, f16 };

constexpr std::int64_t size_of(StoredType type) {
  return type == StoredType::f32 ? 4 : 2;
}

/// Returns the name used in safetensors headers: F32, BF16, F16.
std::string_view name_of(StoredType type);
/// Returns the type with this name, if it is one of the three.
std::optional<StoredType> stored_type(std::string_view name);

/// Sets values[i] to the i-th element at `from`, which may be unaligned. Exact.
void to_floats(StoredType type, const std::uint8_t* from, std::span<float> values);

/// Converts back: rounds to nearest even and stores at `to`, which may be unaligned. Returns the
/// number of finite values that overflowed to infinity.
std::int64_t from_floats(StoredType type, std::span<const float> values, std::uint8_t* to);

}  // namespace llamesh::checkpoint
