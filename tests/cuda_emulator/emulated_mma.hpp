#pragma once

#include "emulated_intrinsics.hpp"

/// Emulated counterpart to ops/cuda/mma.cuh.
namespace llamesh::ops::cuda {
inline namespace emulated {

using SharedAddress = std::uint32_t;

inline SharedAddress shared_address(const void* at) {
  return static_cast<SharedAddress>(static_cast<const std::byte*>(at) - Block::current().shared());
}
inline Words4 ld_shared_v4(SharedAddress from) {
  Block::current().check_shared(from, 16, 16);
  return load_words<Words4>(Block::current().shared() + from);
}
inline void st_shared(SharedAddress to, std::uint32_t word) {
  Block::current().check_shared(to, 4, 4);
  std::memcpy(Block::current().shared() + to, &word, 4);
  Block::current().hide_from_products(to, 4);
}

inline SharedAddress rematerialized_xor(SharedAddress from, SharedAddress bits) {
  return from ^ bits;
}

inline void cp_async_16(SharedAddress to, const void* from, bool valid) {
  Block::current().copy_async(to, valid ? from : nullptr, 16);
}
inline void cp_async_commit_group() {
  Block::current().commit_copies();
}
template <int open>
void cp_async_wait_group() {
  Block::current().wait_copies(open);
}

struct MatrixArgument {
  SharedAddress from;
  bool transposed;
  std::uint32_t result[4];
  SharedAddress read[8];  // addresses that the result was read from
};

inline void perform_load_matrix(void* const* lanes) {
  for (int lane = 0; lane < emulator::warp_size; ++lane)
    Block::current().check_shared(static_cast<const MatrixArgument*>(lanes[lane])->from, 16, 16);
  for (int lane = 0; lane < emulator::warp_size; ++lane) {
    auto* mine = static_cast<MatrixArgument*>(lanes[lane]);
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int i = 0; i < 8; ++i) {
      const int matrix = i / 2;
      const int row = mine->transposed ? pair + i % 2 : group;
      const int col = mine->transposed ? group : pair + i % 2;
      const auto from = static_cast<const MatrixArgument*>(lanes[matrix * 8 + row])->from;
      mine->read[i] = from + static_cast<SharedAddress>(2 * col);
      std::uint16_t bits = 0;
      std::memcpy(&bits, Block::current().shared() + mine->read[i], 2);
      mine->result[matrix] |= static_cast<std::uint32_t>(bits) << 16 * (i % 2);
    }
  }
}

inline void ldmatrix_x4_any(std::uint32_t (&to)[4], SharedAddress from, bool transposed) {
  MatrixArgument mine{from, transposed, {}, {}};
  Block::current().together(Together::load_matrix, &mine, &perform_load_matrix);
  for (const auto number : mine.read) Block::current().reads(Block::current().shared() + number, 2);
  std::memcpy(to, mine.result, sizeof to);
}
inline void ldmatrix_x4(std::uint32_t (&to)[4], SharedAddress from) {
  ldmatrix_x4_any(to, from, false);
}
inline void ldmatrix_x4_trans(std::uint32_t (&to)[4], SharedAddress from) {
  ldmatrix_x4_any(to, from, true);
}

struct MultiplyArgument {
  float* c;
  std::uint32_t a[4], b[2];
};

inline float half_of(std::uint32_t word, int half) {
  return __uint_as_float(half == 0 ? word << 16U : word & 0xFFFF0000U);
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

inline void mma_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                         std::uint32_t b1) {
  MultiplyArgument mine{c, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  Block::current().together(Together::multiply, &mine, &perform_multiply);
}

}  // namespace emulated
}  // namespace llamesh::ops::cuda
