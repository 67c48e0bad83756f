#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/buffer.hpp"

namespace llamesh::device {
namespace {

/// Fixture that measures bytes in use beyond those at the start of the test.
class Memory : public testing::Test {
 protected:
  std::int64_t in_use() const { return meter_.in_use() - before_; }
  std::int64_t peak() const { return meter_.peak() - before_; }
  void start_interval() { meter_.start_interval(); }
  void SetUp() override { start_interval(); }
  void TearDown() override { EXPECT_EQ(in_use(), 0) << "an allocation was left behind"; }

 private:
  MemoryMeter& meter_ = MemoryMeter::instance();
  std::int64_t before_ = meter_.in_use();
};

using ScopedAllocationTest = Memory;
using BufferTest = Memory;

TEST_F(ScopedAllocationTest, CountsAsLongAsItLives) {
  {
    const ScopedAllocation a(100);
    EXPECT_EQ(in_use(), 100);
    const ScopedAllocation b(23);
    EXPECT_EQ(in_use(), 123);
  }
  EXPECT_EQ(in_use(), 0);
}

TEST_F(ScopedAllocationTest, ResetEndsItOnce) {
  ScopedAllocation allocation(100);
  allocation.reset();
  EXPECT_EQ(in_use(), 0);
  allocation.reset();
  EXPECT_EQ(in_use(), 0);
}

TEST_F(ScopedAllocationTest, PeakIsTheHighestSinceTheStartOfTheInterval) {
  {
    const ScopedAllocation a(100);
    { const ScopedAllocation b(900); }
    { const ScopedAllocation c(500); }
    EXPECT_EQ(peak(), 1000);
    EXPECT_EQ(in_use(), 100);
    start_interval();
    EXPECT_EQ(peak(), 100);
    { const ScopedAllocation d(50); }
    EXPECT_EQ(peak(), 150);
  }
  EXPECT_EQ(peak(), 150);
}

TEST_F(ScopedAllocationTest, IsCountedOnceWhenItIsMoved) {
  ScopedAllocation a(100);
  ScopedAllocation b(std::move(a));
  EXPECT_EQ(in_use(), 100);
  ScopedAllocation c(10);
  c = std::move(b);  // frees what c had
  EXPECT_EQ(in_use(), 100);
  auto& same = c;
  c = std::move(same);
  EXPECT_EQ(in_use(), 100);
  c = ScopedAllocation();
  EXPECT_EQ(in_use(), 0);
}

TEST_F(ScopedAllocationTest, OfManyThreadsAddUp) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([] {
      for (int i = 0; i < 1000; ++i) const ScopedAllocation allocation(3);
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(in_use(), 0);
  EXPECT_GE(peak(), 3);
  EXPECT_LE(peak(), 12);
}

TEST_F(BufferTest, IsAlignedAndZeroAlsoWhereMemoryIsUsedAgain) {
  for (const std::int64_t bytes : {1, 64, 4097, 3 << 20}) {
    for (int round = 0; round < 2; ++round) {
      const Buffer buffer(bytes);
      ASSERT_TRUE(buffer);
      EXPECT_EQ(buffer.bytes(), bytes);
      EXPECT_EQ(buffer.own_bytes(), bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0U);
      EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + bytes,
                              [](std::byte b) { return b == std::byte{0}; }));
      std::fill_n(buffer.data(), bytes, std::byte{0xff});
    }
  }
}

TEST_F(BufferTest, CountsUnlessAPoolDoes) {
  const Buffer counted(1000);
  EXPECT_EQ(in_use(), 1000);
  const Buffer not_counted(500, Counted::no);
  EXPECT_EQ(in_use(), 1000);
  Buffer lent(200);
  EXPECT_EQ(in_use(), 1200);
  lent.stop_counting();
  EXPECT_EQ(in_use(), 1000);
  EXPECT_EQ(lent.own_bytes(), 200);
  EXPECT_TRUE(lent) << "it still has its memory";
}

TEST_F(BufferTest, TakesItsMemoryAndItsCountAlong) {
  Buffer first(256);
  std::byte* const at = first.data();
  at[255] = std::byte{42};
  const Buffer second = std::move(first);
  EXPECT_EQ(second.data(), at);
  EXPECT_EQ(second.data()[255], std::byte{42});
  EXPECT_EQ(in_use(), 256);
}

TEST_F(BufferTest, OfNoBytesHasNothing) {
  const Buffer buffer(0);
  EXPECT_FALSE(buffer);
  EXPECT_EQ(buffer.bytes(), 0);
  EXPECT_FALSE(Buffer());
}

TEST_F(BufferTest, AdoptsMemoryOfWhichAPartIsItsOwn) {
  auto owner = std::make_shared<std::vector<std::byte>>(4096);
  const std::weak_ptr<void> watched = owner;
  {
    const Buffer buffer(owner, owner->data(), 4096, 1024);
    owner.reset();
    EXPECT_FALSE(watched.expired());
    EXPECT_EQ(buffer.bytes(), 4096);
    EXPECT_EQ(buffer.own_bytes(), 1024);
    EXPECT_EQ(in_use(), 1024);
  }
  EXPECT_TRUE(watched.expired());
}

// Another thread, or MPI, may still write to it.
TEST_F(BufferTest, StaysMappedWhileAnErrorUnwinds) {
  std::byte* data = nullptr;
  try {
    const Buffer buffer(4096);
    data = buffer.data();
    throw std::runtime_error("an error");
  } catch (const std::runtime_error&) {
    *data = std::byte{1};
  }
  EXPECT_EQ(*data, std::byte{1});
}

TEST_F(BufferTest, ViewsLieWithinIt) {
  const Buffer buffer(64);
  const Tensor view = buffer.tensor(DType::f32, {2, 3}, 40);
  EXPECT_EQ(view.data(), buffer.data() + 40);
  EXPECT_EQ(view.size(1), 3);
  EXPECT_EQ(buffer.tensor(DType::bf16, {32}).bytes(), 64);
  EXPECT_THROW(buffer.tensor(DType::f32, {2, 3}, 44), Error);
  EXPECT_THROW(buffer.tensor(DType::f32, {1}, -4), Error);
  EXPECT_THROW(buffer.tensor(DType::bf16, {33}), Error);
}

TEST_F(BufferTest, SaysWhatToDoWhenThereIsNoMemory) {
  const ScopedAllocation allocation(77);
  const auto said = [] {
    try {
      const Buffer buffer(std::int64_t{1} << 60);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_input);
      return std::string(error.what());
    }
    return std::string("2^60 bytes were allocated");
  };
  const std::string what = "cannot allocate 1152921504606846976 bytes (77 are in use)";
  EXPECT_EQ(said(), what);
  advise_on_memory("lower train.micro_batch");
  EXPECT_EQ(said(), what + "; lower train.micro_batch");
  advise_on_memory(nullptr);
  EXPECT_EQ(in_use(), 77);
}

}  // namespace
}  // namespace llamesh::device
