#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "core/dtype.hpp"
#include "emulator.hpp"

/// CUDA names that the kernels use, for the host, plus the additions in ops/cuda/intrinsics.cuh.
/// The comments there apply here.

// NOLINTBEGIN(bugprone-reserved-identifier)
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define threadIdx (::llamesh::ops::cuda::emulated::thread_index())
#define blockIdx (::llamesh::ops::cuda::emulated::block_index())
#define blockDim (::llamesh::ops::cuda::emulated::block_size())
#define gridDim (::llamesh::ops::cuda::emulated::grid_size())

namespace llamesh::ops::cuda {
inline namespace emulated {

using emulator::Block;
using emulator::Together;

// --- CUDA's built-in variables, unsigned as in CUDA ---

struct BuiltinIndex {
  unsigned x, y, z;
};
inline BuiltinIndex as_builtin(const emulator::Index& index) {
  return {static_cast<unsigned>(index.x), static_cast<unsigned>(index.y),
          static_cast<unsigned>(index.z)};
}
inline BuiltinIndex thread_index() {
  return {static_cast<unsigned>(Block::current().thread()), 0, 0};
}
inline BuiltinIndex block_size() {
  return {static_cast<unsigned>(Block::current().threads()), 1, 1};
}
inline BuiltinIndex block_index() {
  return as_builtin(Block::current().index());
}
inline BuiltinIndex grid_size() {
  return as_builtin(Block::current().grid());
}

// --- CUDA's functions ---

inline void __syncthreads() {
  Block::current().sync();
}
inline void __syncwarp() {
  Block::current().together(Together::sync, nullptr, nullptr);
}

inline constexpr unsigned full_warp = 0xFFFFFFFFU;

inline std::int32_t __float2int_rn(float x) {
  return std::isnan(x) ? 0 : static_cast<std::int32_t>(std::nearbyint(x));
}

template <class T>
T __shfl_sync(unsigned lanes, T value, int from) {
  if (lanes != full_warp) throw std::runtime_error("only shuffles of a whole warp are emulated");
  struct Argument {
    T value, result;
    int from;
  } mine{value, value, from};
  Block::current().together(Together::shuffle, &mine, [](void* const* all) {
    for (int lane = 0; lane < emulator::warp_size; ++lane) {
      auto* to = static_cast<Argument*>(all[lane]);
      to->result = static_cast<const Argument*>(all[to->from % emulator::warp_size])->value;
    }
  });
  return mine.result;
}
template <class T>
T __shfl_xor_sync(unsigned lanes, T value, int mask) {
  return __shfl_sync(lanes, value, (Block::current().thread() % emulator::warp_size) ^ mask);
}

/// On a GPU this makes the device unusable for the program.
[[noreturn]] inline void __trap() {
  throw std::runtime_error("__trap() in a kernel");
}

inline float __uint_as_float(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}
inline std::uint32_t __float_as_uint(float x) {
  return std::bit_cast<std::uint32_t>(x);
}
inline float __expf(float x) {
  return std::exp(x);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
// NOLINTEND(bugprone-reserved-identifier)

// --- From ops/cuda/intrinsics.cuh ---

inline int rematerialized_thread_x() {
  return Block::current().thread();
}
inline std::uint32_t pack_bf16(float low, float high) {
  return static_cast<std::uint32_t>(bf16(low).bits) | static_cast<std::uint32_t>(bf16(high).bits)
                                                          << 16U;
}
inline float ex2_approx(float x) {
  return std::exp2(x);
}

struct Words4 {
  std::uint32_t w[4];
};
struct Words2 {
  std::uint32_t w[2];
};
struct Words1 {
  std::uint32_t w[1];
};

template <class Words>
void require_aligned(const void* at) {
  if (reinterpret_cast<std::uintptr_t>(at) % sizeof(Words) != 0)
    throw std::runtime_error("an unaligned access of 4, 8 or 16 bytes");
}
template <class Words>
Words load_words(const void* from) {
  require_aligned<Words>(from);
  Words words;
  std::memcpy(&words, from, sizeof words);
  return words;
}
template <class Words>
void store_words(void* to, Words words) {
  require_aligned<Words>(to);
  std::memcpy(to, &words, sizeof words);
}

template <class T>
T* dynamic_shared_memory() {
  return reinterpret_cast<T*>(Block::current().shared());
}

}  // namespace emulated
}  // namespace llamesh::ops::cuda
