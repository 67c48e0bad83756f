#pragma once

#include <cstdint>
#include <type_traits>

#include "core/dtype.hpp"

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#define LLAMESH_BF16_ATTENTION
#endif

namespace llamesh::ops::cpu {

/// Attention's products by the CPU's bf16 instructions.
struct Bf16Attention {
  enum class By : std::uint8_t {
    none,   ///< in fp32
    pairs,  ///< AVX-512: two products a lane
    tiles,  ///< AMX: 16 x 16 sums of 32 products
  };
  /// Returns what attention of bf16 matrices uses: the CPU's instructions if other bf16 products do
  /// (bf16_products()) and this build has code for them.
  static By chosen();

  /// Floats for two tiles of sums.
  static constexpr std::int64_t sums = 512;
};

/// Returns chosen() for matrices of T.
template <class T>
Bf16Attention::By bf16_attention_of() {
  return std::is_same_v<T, bf16> ? Bf16Attention::chosen() : Bf16Attention::By::none;
}

/// AMX tile registers, for the calling thread, while this object lives. Does nothing for other
/// instructions.
class TileRegisters {
 public:
  explicit TileRegisters(Bf16Attention::By by);
  ~TileRegisters();
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;

 private:
  bool in_use_;
};

}  // namespace llamesh::ops::cpu
