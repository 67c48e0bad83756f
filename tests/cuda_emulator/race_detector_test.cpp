#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>

#include "emulated_wgmma.hpp"

/// Built with the calls before memory accesses, like the kernels.
namespace llamesh::test {
namespace {

using namespace ops::cuda;

/// Returns the emulator's message for a launch with two warps.
std::string finding(const std::function<void()>& kernel, int blocks = 1) {
  try {
    emulator::Block::current().run({blocks, 1, 1}, 64, 64 * 128, kernel);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}
void expect_race(const std::function<void()>& kernel, const std::string& who, int blocks = 1) {
  const auto said = finding(kernel, blocks);
  EXPECT_NE(said.find("a race: " + who), std::string::npos)
      << '\'' << said << "' instead of " << who;
}

enum class Barrier { none, shuffle, warp, block };
void wait_at(Barrier barrier) {
  if (barrier == Barrier::shuffle) __shfl_xor_sync(full_warp, 1.0F, 1);
  if (barrier == Barrier::warp) __syncwarp();
  if (barrier == Barrier::block) __syncthreads();
}

/// Returns a kernel in which a thread reads the value written `distance` threads ahead.
std::function<void()> pass_on(int distance, Barrier barrier) {
  return [=] {
    auto* shared = dynamic_shared_memory<volatile float>();
    shared[threadIdx.x] = 1;
    wait_at(barrier);
    shared[64 + threadIdx.x] = shared[(threadIdx.x + distance) % 64];
  };
}

TEST(RaceDetector, BarriersOrderWhatTheyHold) {
  for (const auto barrier : {Barrier::none, Barrier::shuffle, Barrier::warp, Barrier::block})
    EXPECT_EQ(finding(pass_on(0, barrier)), "") << "a thread's own memory";
  EXPECT_EQ(finding(pass_on(1, Barrier::block)), "");
  EXPECT_EQ(finding(pass_on(32, Barrier::block)), "");
  expect_race(pass_on(1, Barrier::none), "thread");
  expect_race(pass_on(1, Barrier::shuffle), "thread");
  expect_race(pass_on(32, Barrier::warp), "thread 0 of block 0 and thread 32 of block 0");
}

// Lane 5 in each warp overwrites what its warp's lanes have read.
TEST(RaceDetector, ABarrierOfTheWarpIsEnoughWithinIt) {
  const auto read_then_write = [](Barrier barrier, bool own_warp) {
    return [=] {
      auto* shared = dynamic_shared_memory<volatile float>();
      const int warp = threadIdx.x / 32;
      static_cast<void>(static_cast<float>(shared[warp]));
      wait_at(barrier);
      if (threadIdx.x % 32 == 5) shared[own_warp ? warp : 1 - warp] = 0;
    };
  };
  EXPECT_EQ(finding(read_then_write(Barrier::warp, true)), "");
  EXPECT_EQ(finding(read_then_write(Barrier::block, false)), "");
  expect_race(read_then_write(Barrier::none, true), "several threads of block 0 and thread 5");
  expect_race(read_then_write(Barrier::warp, false), "");
}

TEST(RaceDetector, NothingOrdersTheBlocksOfALaunch) {
  std::array<float, 64> memory{};
  const auto write = [&] { memory[static_cast<std::size_t>(threadIdx.x)] = 1; };
  expect_race(write, "thread 63 of block 0 and thread 63 of block 1", 2);
  EXPECT_EQ(finding(write), "");
  EXPECT_EQ(finding(write), "") << "a launch is ordered after the one before";
  volatile float seen = 0;
  EXPECT_EQ(finding([&] { EXPECT_EQ(memory[5] + seen, 1); }, 2), "") << "reading alone is no race";
  expect_race(
      [&] {
        static_cast<void>(static_cast<float>(seen));
        __syncthreads();
        if (blockIdx.x == 1 && threadIdx.x == 3) seen = 1;
      },
      "threads of several blocks and thread 3 of block 1", 2);
}

TEST(RaceDetector, WhatACopyBringsIsTheCopyingThreads) {
  alignas(16) static const std::array<float, 256> from{};
  const auto kernel = [](bool wait_first) {
    return [=] {
      cp_async_16(static_cast<SharedAddress>(16 * threadIdx.x),
                  &from[static_cast<std::size_t>(4 * threadIdx.x)], true);
      cp_async_commit_group();
      if (wait_first) cp_async_wait_group<0>();
      __syncthreads();
      if (!wait_first) cp_async_wait_group<0>();
      auto* shared = dynamic_shared_memory<volatile float>();
      shared[256 + threadIdx.x] = shared[(4 * threadIdx.x + 4) % 256];
    };
  };
  EXPECT_EQ(finding(kernel(true)), "");
  expect_race(kernel(false), "thread");
}

TEST(RaceDetector, AProductReadsItsFactorsUntilItIsWaitedFor) {
  const auto kernel = [](bool barrier) {
    return [=] {
      float sums[8][4];
      const auto all = matrix_descriptor(0, 16);
      wgmma_ss(sums, all, all, false);
      wgmma_commit_group();
      wgmma_wait_group<0>(sums);
      if (barrier) __syncthreads();
      if (threadIdx.x == 64) st_shared(0, 0);
    };
  };
  const auto run = [&](bool barrier) {
    emulator::Block::current().run({1, 1, 1}, 128, 64 * 128, kernel(barrier));
  };
  EXPECT_NO_THROW(run(true));
  EXPECT_ANY_THROW(run(false)) << "the other warps may not have waited yet";
}

}  // namespace
}  // namespace llamesh::test
