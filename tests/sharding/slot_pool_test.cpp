#include "sharding/slot_pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "core/error.hpp"
#include "device/simulated/simulation.hpp"

namespace llamesh::sharding {
namespace {

constexpr std::int64_t bytes_per_element = 4;

/// A pool that records its allocations.
class SlotPoolTest : public testing::Test {
 protected:
  SlotPool pool(std::size_t units, std::size_t behind) {
    return {[this](std::int64_t numel) {
              allocated_.push_back(numel);
              return device::Buffer(numel * bytes_per_element);
            },
            units, behind};
  }
  /// Returns the bytes in use beyond those at the start of the test.
  std::int64_t in_use() const { return device::MemoryMeter::instance().in_use() - before_; }

  std::vector<std::int64_t> allocated_;

 private:
  std::int64_t before_ = device::MemoryMeter::instance().in_use();
};

TEST_F(SlotPoolTest, GivesAUnitTheSlotThatItHadBefore) {
  auto slots = pool(2, 0);
  const auto* first = slots.acquire(0, 100).buffer.data();
  const auto* second = slots.acquire(1, 100).buffer.data();
  EXPECT_NE(first, second);
  slots.release(0, {});
  slots.release(1, {});
  EXPECT_EQ(slots.acquire(1, 100).buffer.data(), second) << "not the one that was free the longest";
  EXPECT_EQ(slots.acquire(0, 100).buffer.data(), first);
  EXPECT_EQ(allocated_, (std::vector<std::int64_t>{100, 100}));
}

TEST_F(SlotPoolTest, NeverLendsASlotTwiceAtATime) {
  auto slots = pool(4, 0);
  std::set<const void*> lent;
  for (std::size_t unit = 0; unit < 4; ++unit) lent.insert(slots.acquire(unit, 64).buffer.data());
  EXPECT_EQ(lent.size(), 4U);
}

// The product of its bytes and elements exceeds 64 bits.
TEST(SlotPool, CountsAUnitOfBillionsOfElements) {
  const device::Simulation simulation({});
  SlotPool slots([](std::int64_t numel) { return device::Buffer(2 * numel); }, 2, 0);
  const std::int64_t numel = 5'000'000'000;
  slots.acquire(0, numel);
  EXPECT_EQ(device::MemoryMeter::instance().in_use(), 2 * numel);
  slots.release(0, {});
  slots.acquire(1, numel / 2);
  EXPECT_EQ(device::MemoryMeter::instance().in_use(), numel);
}

TEST_F(SlotPoolTest, TakesAnotherUnitsSlotThatIsLargeEnough) {
  auto slots = pool(3, 0);
  const auto* large = slots.acquire(0, 100).buffer.data();
  slots.release(0, {});
  auto& reused = slots.acquire(1, 30);
  EXPECT_EQ(reused.buffer.data(), large);
  EXPECT_EQ(reused.numel, 100);
  slots.release(1, {});
  EXPECT_NE(slots.acquire(2, 101).buffer.data(), large);
  EXPECT_EQ(allocated_, (std::vector<std::int64_t>{100, 101}));
}

TEST_F(SlotPoolTest, TakesTheSlotThatWasGivenBackFirst) {
  auto slots = pool(5, 0);
  std::vector<const void*> lent;
  for (std::size_t unit = 0; unit < 3; ++unit)
    lent.push_back(slots.acquire(unit, 64).buffer.data());
  for (const std::size_t unit : {1U, 2U, 0U}) slots.release(unit, {});
  EXPECT_EQ(slots.acquire(3, 64).buffer.data(), lent[1]);
  EXPECT_EQ(slots.acquire(4, 64).buffer.data(), lent[2]);
}

TEST_F(SlotPoolTest, LeavesSlotsAloneThatACollectiveStillReads) {
  auto slots = pool(4, 1);
  const auto* first = slots.acquire(0, 64).buffer.data();
  slots.release(0, {});
  const auto* second = slots.acquire(1, 64).buffer.data();
  EXPECT_NE(second, first) << "the slot of unit 0 is the one behind";
  slots.release(1, {});
  EXPECT_EQ(slots.acquire(2, 64).buffer.data(), first) << "the slot of unit 1 is the one behind";
  slots.release(2, {});
  EXPECT_EQ(slots.acquire(3, 64).buffer.data(), second);
  EXPECT_EQ(allocated_.size(), 2U);
}

TEST_F(SlotPoolTest, HandsOnTheEventThatFreesTheSlot) {
  auto slots = pool(1, 0);
  EXPECT_TRUE(slots.acquire(0, 64).free_after.ready());
  auto stream = device::Stream::worker();
  std::atomic<bool> go{false};
  stream.run([&] { go.wait(false); });
  slots.release(0, stream.record());
  const auto& slot = slots.acquire(0, 64);
  EXPECT_FALSE(slot.free_after.ready());
  go = true;
  go.notify_all();
  slot.free_after.wait();
}

TEST_F(SlotPoolTest, CountsWhatIsLentAndNoMore) {
  {
    auto slots = pool(3, 0);
    slots.acquire(0, 100);
    EXPECT_EQ(in_use(), 400);
    slots.acquire(1, 60);
    EXPECT_EQ(in_use(), 640);
    slots.release(0, {});
    EXPECT_EQ(in_use(), 240);
    slots.acquire(2, 25);  // a quarter of unit 0's slot
    EXPECT_EQ(in_use(), 340);
    slots.release(1, {});
    slots.release(2, {});
    EXPECT_EQ(in_use(), 0);
    slots.acquire(0, 100);
  }
  EXPECT_EQ(in_use(), 0) << "a pool takes its claims along";
}

TEST_F(SlotPoolTest, CountsItsShareOfSharedMemory) {
  auto memory = std::make_shared<std::vector<std::byte>>(400);
  SlotPool slots([&](std::int64_t) { return device::Buffer(memory, memory->data(), 400, 100); }, 2,
                 0);
  slots.acquire(0, 100);
  EXPECT_EQ(in_use(), 100);
  slots.release(0, {});
  slots.acquire(1, 50);
  EXPECT_EQ(in_use(), 50);
}

TEST_F(SlotPoolTest, RefusesASlotThatWasNotLent) {
  auto slots = pool(1, 0);
  slots.acquire(0, 64);
  slots.release(0, {});
  EXPECT_THROW(slots.release(0, {}), Error);
}

/// Prefetch limits: number of units, and their total elements.
struct Ahead {
  int units;
  std::int64_t numel = 1 << 30;
};

/// Makes the calls for one sharding::Fsdp step: gathers a unit and prefetches the next ones, and
/// releases it when left, forward and backward; the last unit stays in between. `backward` is the
/// pool for the backward pass.
void step_of_gathers(SlotPool& forward, SlotPool& backward, const std::vector<std::int64_t>& sizes,
                     const Ahead& ahead) {
  std::vector<SlotPool*> gathered(sizes.size());  // the pool that each unit came from
  const auto pass = [&](SlotPool& pool, int direction, std::size_t first, std::size_t count) {
    const auto gather = [&](std::size_t u) {
      if (gathered[u] == nullptr) (gathered[u] = &pool)->acquire(u, sizes[u]);
    };
    for (auto u = first; count-- > 0; u += static_cast<std::size_t>(direction)) {
      gather(u);
      auto next = u;
      std::int64_t numel = 0;
      for (int i = 0; i < ahead.units; ++i) {
        next += static_cast<std::size_t>(direction);
        if (next >= sizes.size()) break;
        numel += sizes[next];
        if (numel > ahead.numel) break;
        gather(next);
      }
      gathered[u]->release(u, {});
      gathered[u] = nullptr;
    }
  };
  pass(forward, 1, 0, sizes.size() - 1);
  pass(backward, -1, sizes.size() - 1, sizes.size());
}

TEST_F(SlotPoolTest, GrowsInTheFirstStepOnly) {
  for (std::uint32_t seed = 1; seed <= 1000; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::int64_t> sizes(1 + random() % 9);
    for (auto& size : sizes) size = 32 * (1 + static_cast<std::int64_t>(random() % 6));
    Ahead ahead{static_cast<int>(random() % 5)};
    if (random() % 3 == 0) ahead.numel = static_cast<std::int64_t>(random() % 600);
    allocated_.clear();
    const auto behind = random() % 2;
    auto slots = pool(sizes.size(), behind);
    auto of_secondary_shards = pool(sizes.size(), behind);
    auto& backward = random() % 2 == 0 ? slots : of_secondary_shards;
    step_of_gathers(slots, backward, sizes, ahead);
    const auto after_first = allocated_.size();
    for (int step = 0; step < 5; ++step) step_of_gathers(slots, backward, sizes, ahead);
    ASSERT_EQ(allocated_.size(), after_first) << "seed " << seed;
    EXPECT_EQ(in_use(), 0) << "seed " << seed;
  }
}

TEST_F(SlotPoolTest, NeedsOneSlotMoreThanEqualLayersAreGatheredAhead) {
  for (int units = 0; units <= 4; ++units) {
    allocated_.clear();
    auto slots = pool(8, 0);
    for (int step = 0; step < 3; ++step)
      step_of_gathers(slots, slots, std::vector<std::int64_t>(8, 64), {units});
    EXPECT_EQ(allocated_.size(), static_cast<std::size_t>(units + 1));
  }
}

}  // namespace
}  // namespace llamesh::sharding
