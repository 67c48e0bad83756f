#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "emulated_wgmma.hpp"

/// Checks that the emulator detects what it should, and that its matrix instructions multiply
/// matrices.
namespace llamesh::test {
namespace {

using namespace ops::cuda;

/// Runs `kernel` on two blocks with opposite thread orders.
void run(const std::function<void()>& kernel, int threads = 64, std::int64_t shared_bytes = 4096) {
  emulator::Block::current().run({2, 1, 1}, threads, shared_bytes, kernel);
}

/// Each thread reads its neighbor's value.
void pass_on(bool barrier, std::vector<float>& got) {
  run([&] {
    auto* shared = dynamic_shared_memory<float>();
    const int me = threadIdx.x;
    shared[me] = static_cast<float>(me);
    if (barrier) __syncthreads();
    got[static_cast<std::size_t>(blockIdx.x * 64 + me)] = shared[(me + 1) % 64];
  });
}

TEST(Emulator, ABarrierOrdersSharedMemoryAndItsLackShows) {
  std::vector<float> got(128);
  pass_on(true, got);
  for (int i = 0; i < 128; ++i) EXPECT_EQ(got[static_cast<std::size_t>(i)], (i % 64 + 1) % 64);
  pass_on(false, got);
  for (const int first : {0, 64}) {
    int wrong = 0;
    for (int i = 0; i < 63; ++i)
      if (std::isnan(got[static_cast<std::size_t>(first + i)])) ++wrong;
    EXPECT_EQ(wrong, first == 0 ? 63 : 0) << "the second block runs the other way round";
  }
}

// A warp that runs ahead overwrites a value before another warp has read it.
TEST(Emulator, AWarpOvertakesWhereNoBarrierHoldsIt) {
  for (const bool barrier : {false, true}) {
    int wrong = 0;
    run([&] {
      auto* shared = dynamic_shared_memory<int>();
      for (int round = 0; round < 2; ++round) {
        if (threadIdx.x == 0) shared[0] = round;
        __syncthreads();
        if (shared[0] != round) ++wrong;
        __shfl_xor_sync(full_warp, round, 1);
        if (barrier) __syncthreads();
      }
    });
    EXPECT_EQ(wrong > 0, !barrier) << wrong;
  }
}

TEST(Emulator, ACopyArrivesWhenItIsWaitedForAndNotBefore) {
  alignas(16) const float from[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  run(
      [&] {
        if (threadIdx.x != 0) return;
        auto* shared = dynamic_shared_memory<float>();
        cp_async_16(0, from, true);
        cp_async_commit_group();
        cp_async_16(16, from + 4, true);
        cp_async_16(32, from, false);
        cp_async_commit_group();
        EXPECT_TRUE(std::isnan(shared[0]));
        cp_async_wait_group<1>();
        EXPECT_EQ(shared[3], 4);
        EXPECT_TRUE(std::isnan(shared[4]));
        cp_async_wait_group<0>();
        EXPECT_EQ(shared[7], 8);
        EXPECT_EQ(shared[8], 0);
      },
      32);
  EXPECT_ANY_THROW(run(
      [&] {
        cp_async_16(0, from, true);
        cp_async_commit_group();
      },
      32))
      << "a copy that nobody waits for";
}

TEST(Emulator, MistakesAreErrors) {
  alignas(16) static const float from[4] = {};
  EXPECT_ANY_THROW(run([] {
    if (threadIdx.x < 60) __syncthreads();
  })) << "a barrier that some threads do not reach";
  EXPECT_ANY_THROW(run([] {
    if (threadIdx.x == 7) return;
    __syncthreads();
  }));
  EXPECT_ANY_THROW(run([] {
    if (threadIdx.x % 2 == 0)
      __syncwarp();
    else
      __shfl_xor_sync(full_warp, 1.0F, 1);
  })) << "lanes of a warp that do different things";
  EXPECT_ANY_THROW(run([] { cp_async_16(4096, from, true); })) << "beyond shared memory";
  EXPECT_ANY_THROW(run([] { cp_async_16(8, from, true); })) << "not aligned";
  EXPECT_ANY_THROW(run([] { dynamic_shared_memory<float>()[1024] = 0; }))
      << "just beyond shared memory";
  EXPECT_ANY_THROW(run([] {
    if (threadIdx.x == 63) __trap();
  }));
  run([] { __syncthreads(); });  // still usable afterwards
}

TEST(Emulator, ShufflesExchange) {
  run([] {
    const int lane = threadIdx.x % 32;
    EXPECT_EQ(__shfl_xor_sync(full_warp, lane, 5), lane ^ 5);
    EXPECT_EQ(__shfl_xor_sync(full_warp, static_cast<double>(lane), 16), lane ^ 16);
    EXPECT_EQ(__shfl_sync(full_warp, lane, lane / 2), lane / 2);
  });
}

// c (16, 8) = a (16, 16) b (16, 8), with b as stored and from its transpose.
TEST(Emulator, MatrixInstructionsMultiply) {
  const auto a = [](int i, int k) { return static_cast<float>(i * 3 - k * 2 + i * k % 7); };
  const auto b = [](int k, int j) { return static_cast<float>(k - 2 * j + k * j % 5); };
  run(
      [&] {
        auto* left = dynamic_shared_memory<bf16>();
        auto* right = left + 256;          // (k, j), 16 x 8
        auto* right_turned = right + 128;  // (j, k), 8 x 16
        const int lane = threadIdx.x;
        for (int i = lane; i < 256; i += 32) left[i] = bf16(a(i / 16, i % 16));
        for (int i = lane; i < 128; i += 32) right[i] = bf16(b(i / 8, i % 8));
        for (int i = lane; i < 128; i += 32) right_turned[i] = bf16(b(i % 16, i / 16));
        __syncwarp();
        std::uint32_t x[4], y[4], z[4];
        ldmatrix_x4(x, shared_address(left + lane % 16 * 16 + lane / 16 * 8));
        ldmatrix_x4_trans(y, shared_address(right + lane % 16 * 8));
        ldmatrix_x4(z, shared_address(right_turned + lane % 8 * 16 + lane / 8 % 2 * 8));
        float c[4] = {1, 1, 1, 1}, d[4] = {};
        mma_m16n8k16(c, x, y[0], y[1]);
        mma_m16n8k16(d, x, z[0], z[1]);
        for (int n = 0; n < 4; ++n) {
          const int row = lane / 4 + n / 2 * 8, col = lane % 4 * 2 + n % 2;
          float expected = 0;
          for (int k = 0; k < 16; ++k) expected += a(row, k) * b(k, col);
          EXPECT_EQ(c[n], expected + 1);
          EXPECT_EQ(d[n], expected);
        }
      },
      32);
}

float left_number(int i, int k) {
  return static_cast<float>((i * 3 - k * 2 + i * k % 7) % 16);
}
float right_number(int k, int j) {
  return static_cast<float>((k - 2 * j + k * j % 5) % 16);
}

/// Returns the address of element `i` in a row: panels of 64 elements by `rows` rows, 128-byte
/// swizzled.
SharedAddress swizzled(int rows, int row, int i) {
  return static_cast<SharedAddress>(i / 64 * rows * 128 + row * 128 + (i / 8 % 8 ^ row % 8) * 16 +
                                    i % 8 * 2);
}
void put_number(SharedAddress at, float number) {
  const bf16 rounded(number);
  std::memcpy(emulator::Block::current().shared() + at, &rounded, 2);
}
void expect_sum(float sum, int n, int i, int inner) {
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 * 8;
  const int col = 8 * n + threadIdx.x % 4 * 2 + i % 2;
  float expected = 0;
  for (int k = 0; k < inner; ++k) expected += left_number(row, k) * right_number(k, col);
  EXPECT_EQ(sum, expected) << "row " << row << ", column " << col;
}

// sums (64, 64) = a (64, 32) b (32, 64) with a's rows and b's columns in shared memory; a's 32
// columns are the second half of a panel.
TEST(Emulator, AWarpgroupMultipliesRows) {
  constexpr SharedAddress right = 64 * 128;
  run(
      [&] {
        for (int i = threadIdx.x; i < 64 * 32; i += 128) {
          put_number(swizzled(64, i / 32, 32 + i % 32), left_number(i / 32, i % 32));
          put_number(right + swizzled(64, i / 32, i % 32), right_number(i % 32, i / 32));
        }
        __syncthreads();
        float sums[8][4];
        for (int k = 0; k < 2; ++k)
          wgmma_ss(sums, advance(matrix_descriptor(0, 16), 64 + 32 * k),
                   advance(matrix_descriptor(right, 16), 32 * k), k > 0);
        EXPECT_TRUE(std::isnan(sums[0][0])) << "before it is waited for";
        wgmma_commit_group();
        wgmma_wait_group<0>(sums);
        for (int n = 0; n < 8; ++n)
          for (int i = 0; i < 4; ++i) expect_sum(sums[n][i], n, i, 32);
      },
      128, 2 * 64 * 128);
}

// sums (64, 128) = a (64, 16) b (16, 128) with a in registers and b's rows in two panels, starting
// at row 16.
TEST(Emulator, AWarpgroupMultipliesColumns) {
  run(
      [&] {
        for (int i = threadIdx.x; i < 16 * 128; i += 128)
          put_number(swizzled(32, 16 + i / 128, i % 128), right_number(i / 128, i % 128));
        __syncthreads();
        std::uint32_t left[4];
        const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;
        for (int i = 0; i < 4; ++i) {
          const int r = row + i % 2 * 8, c = col + i / 2 * 8;
          left[i] = pack_bf16(left_number(r, c), left_number(r, c + 1));
        }
        float sums[16][4] = {};
        wgmma_rs(sums, left, advance(matrix_descriptor(0, 32 * 128), 16 * 128));
        wgmma_commit_group();
        wgmma_wait_group<0>(sums);
        for (int n = 0; n < 16; ++n)
          for (int i = 0; i < 4; ++i) expect_sum(sums[n][i], n, i, 16);
      },
      128, 2 * 32 * 128);
}

/// Multiplies shared memory by itself, with optional mistakes around it.
void multiply_wrongly(bool shown, bool changed, bool waited) {
  run(
      [=] {
        for (int i = threadIdx.x; i < 64 * 32; i += 128)
          st_shared(static_cast<SharedAddress>(4 * i), 0x3F803F80U);
        if (shown) fence_proxy_async();
        __syncthreads();
        float sums[8][4];
        const auto all = matrix_descriptor(0, 16);
        wgmma_ss(sums, all, all, false);
        wgmma_commit_group();
        __syncthreads();
        if (changed && threadIdx.x == 5) st_shared(0, 0);
        __syncthreads();
        if (waited) wgmma_wait_group<0>(sums);
      },
      128, 64 * 128);
}

TEST(Emulator, MistakesWithProductsAreErrors) {
  EXPECT_NO_THROW(multiply_wrongly(true, false, true));
  EXPECT_ANY_THROW(multiply_wrongly(false, false, true)) << "a factor that was not shown";
  EXPECT_ANY_THROW(multiply_wrongly(true, true, true)) << "a factor that changed too early";
  EXPECT_ANY_THROW(multiply_wrongly(true, false, false)) << "sums that nobody waits for";
  EXPECT_ANY_THROW(run([] {
    float sums[8][4];
    wgmma_ss(sums, 0, 0, false);
  })) << "half a warpgroup, factors that are not swizzled";
}

}  // namespace
}  // namespace llamesh::test
