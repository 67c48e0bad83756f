#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "core/dtype.hpp"
#include "emulator.hpp"

/// What ops/cuda/cuda_target.cuh gives under nvcc, over the emulator. The comments there hold here.

// NOLINTBEGIN(bugprone-reserved-identifier)
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
// NOLINTEND(bugprone-reserved-identifier)
#define LLAMESH_UNROLL
#define LLAMESH_NO_UNROLL

namespace llamesh::ops::cuda {
inline namespace emulated {

using emulator::Block;
using emulator::Together;

// --- Where a thread stands ---

inline int thread_x() {
  return Block::current().thread();
}
inline int thread_anew() {
  return thread_x();
}
inline int threads_x() {
  return Block::current().threads();
}
inline int block_x() {
  return Block::current().index().x;
}
inline int block_y() {
  return Block::current().index().y;
}
inline int block_z() {
  return Block::current().index().z;
}
inline int grid_x() {
  return Block::current().grid().x;
}
inline int grid_y() {
  return Block::current().grid().y;
}

// --- Threads together ---

inline void sync_threads() {
  Block::current().sync();
}
inline void sync_warp() {
  Block::current().together(Together::sync, nullptr, nullptr);
}

template <class T>
T shuffle_xor(T value, int mask) {
  struct Argument {
    T value, result;
    int mask;
  } mine{value, value, mask};
  Block::current().together(Together::shuffle, &mine, [](void* const* lanes) {
    for (int lane = 0; lane < emulator::warp_size; ++lane) {
      auto* to = static_cast<Argument*>(lanes[lane]);
      to->result = static_cast<const Argument*>(lanes[lane ^ to->mask])->value;
    }
  });
  return mine.result;
}

/// On a GPU it ends the program's use of the device; here it throws.
inline void require(bool ok) {
  if (!ok) throw std::runtime_error("a kernel met an index out of range");
}

// --- Bits ---

inline float float_of_bits(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}
inline std::uint32_t pack_bf16(float low, float high) {
  return static_cast<std::uint32_t>(bf16(low).bits) | static_cast<std::uint32_t>(bf16(high).bits)
                                                          << 16U;
}

// --- Arithmetic ---

inline float exp_fast(float x) {
  return std::exp(x);
}
inline float exp2_fast(float x) {
  return std::exp2(x);
}
inline float divide_fast(float a, float b) {
  return a / b;
}
inline float exp_of(float x) {
  return std::exp(x);
}
inline float log_of(float x) {
  return std::log(x);
}
inline float sqrt_of(float x) {
  return std::sqrt(x);
}
inline float most_of(float a, float b) {
  return std::fmax(a, b);
}
inline float infinity() {
  return HUGE_VALF;
}

// --- Memory ---

struct Words4 {
  std::uint32_t w[4];
};
struct Words2 {
  std::uint32_t w[2];
};

template <class Words>
void require_aligned(const void* at) {
  if (reinterpret_cast<std::uintptr_t>(at) % sizeof(Words) != 0)
    throw std::runtime_error("an unaligned access of 8 or 16 bytes");
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
T* shared_memory() {
  return reinterpret_cast<T*>(Block::current().shared());
}

}  // namespace emulated
}  // namespace llamesh::ops::cuda
