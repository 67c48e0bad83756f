#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>

#include "core/dtype.hpp"
#include "device/stream.hpp"
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

namespace llamesh::ops::cuda::inline emulated {

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

// --- Shared memory by address, asynchronous copies, matrix instructions ---

using SharedAddress = std::uint32_t;

inline SharedAddress shared_address(const void* at) {
  return static_cast<SharedAddress>(static_cast<const std::byte*>(at) - Block::current().shared());
}
inline Words4 load_shared(SharedAddress from) {
  Block::current().check_shared(from, 16, 16);
  return load_words<Words4>(Block::current().shared() + from);
}
inline void store_shared(SharedAddress to, std::uint32_t word) {
  Block::current().check_shared(to, 4, 4);
  std::memcpy(Block::current().shared() + to, &word, 4);
}

inline SharedAddress flipped(SharedAddress from, SharedAddress bits) {
  return from ^ bits;
}

inline void copy_async(SharedAddress to, const void* from, bool valid) {
  Block::current().copy_async(to, valid ? from : nullptr, 16);
}
inline void copy_async_commit() {
  Block::current().commit_copies();
}
template <int open>
void copy_async_wait() {
  Block::current().wait_copies(open);
}

struct MatrixArgument {
  SharedAddress from;
  bool transposed;
  std::uint32_t result[4];
};

inline std::uint16_t matrix_element(void* const* lanes, int matrix, int row, int col) {
  const auto from = static_cast<const MatrixArgument*>(lanes[matrix * 8 + row])->from;
  std::uint16_t bits = 0;
  std::memcpy(&bits, Block::current().shared() + from + 2 * col, 2);
  return bits;
}

inline void perform_load_matrix(void* const* lanes) {
  for (int lane = 0; lane < emulator::warp_size; ++lane)
    Block::current().check_shared(static_cast<const MatrixArgument*>(lanes[lane])->from, 16, 16);
  for (int lane = 0; lane < emulator::warp_size; ++lane) {
    auto* mine = static_cast<MatrixArgument*>(lanes[lane]);
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int m = 0; m < 4; ++m) {
      const std::uint32_t low = mine->transposed ? matrix_element(lanes, m, pair, group)
                                                 : matrix_element(lanes, m, group, pair);
      const std::uint32_t high = mine->transposed ? matrix_element(lanes, m, pair + 1, group)
                                                  : matrix_element(lanes, m, group, pair + 1);
      mine->result[m] = low | high << 16U;
    }
  }
}

inline void load_matrices_any(std::uint32_t (&to)[4], SharedAddress from, bool transposed) {
  MatrixArgument mine{from, transposed, {}};
  Block::current().together(Together::load_matrix, &mine, &perform_load_matrix);
  std::memcpy(to, mine.result, sizeof to);
}
inline void load_matrices(std::uint32_t (&to)[4], SharedAddress from) {
  load_matrices_any(to, from, false);
}
inline void load_matrices_transposed(std::uint32_t (&to)[4], SharedAddress from) {
  load_matrices_any(to, from, true);
}

struct MultiplyArgument {
  float* c;
  std::uint32_t a[4], b[2];
};

inline float half_of(std::uint32_t word, int half) {
  return float_of_bits(half == 0 ? word << 16U : word & 0xFFFF0000U);
}

inline void perform_multiply(void* const* lanes) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < emulator::warp_size; ++lane) {
    const auto* from = static_cast<const MultiplyArgument*>(lanes[lane]);
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int half = 0; half < 2; ++half) {
      for (int word = 0; word < 4; ++word)
        a[group + word % 2 * 8][pair + word / 2 * 8 + half] = half_of(from->a[word], half);
      for (int word = 0; word < 2; ++word)
        b[pair + word * 8 + half][group] = half_of(from->b[word], half);
    }
  }
  for (int lane = 0; lane < emulator::warp_size; ++lane) {
    auto* c = static_cast<const MultiplyArgument*>(lanes[lane])->c;
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int i = 0; i < 4; ++i)
      for (int k = 0; k < 16; ++k) c[i] += a[group + i / 2 * 8][k] * b[k][pair + i % 2];
  }
}

inline void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                     std::uint32_t b1) {
  MultiplyArgument mine{c, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  Block::current().together(Together::multiply, &mine, &perform_multiply);
}

// --- From the host ---

struct Grid {
  std::int64_t x = 1, y = 1, z = 1;
};

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), Grid grid, std::int64_t threads,
            std::int64_t shared_bytes, device::Stream& stream, Arguments... arguments) {
  stream.run([=] {
    const emulator::Index blocks{static_cast<int>(grid.x), static_cast<int>(grid.y),
                                 static_cast<int>(grid.z)};
    Block::current().run(blocks, static_cast<int>(threads), shared_bytes,
                         [&] { kernel(arguments...); });
  });
}

class Scratch {
 public:
  Scratch(device::Stream& stream, std::int64_t bytes)
      : stream_(stream), data_(std::malloc(static_cast<std::size_t>(bytes))) {
    if (!data_) throw std::bad_alloc();
    std::memset(data_, 0xFF, static_cast<std::size_t>(bytes));
  }
  ~Scratch() {
    stream_.run([data = data_] { std::free(data); });
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  device::Stream& stream_;
  void* data_;
};

template <class T>
T read_back(device::Stream& stream, const T* from) {
  T value{};
  stream.run([&] { value = *from; });
  stream.record().wait();
  return value;
}

inline std::int64_t multiprocessors() {
  return 2;  // so that grids are small and their loops go round
}

}  // namespace llamesh::ops::cuda::inline emulated
