#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/transports/mpi_collectives.hpp"
#include "comm/transports/node_collectives.hpp"
#include "core/process.hpp"
#include "support.hpp"

// The same assertions run on every implementation. Inputs are small integers whose sums are exact
// in fp32 (and the inputs in bf16), so expected values do not depend on summation order.
namespace llamesh::comm {
namespace {

constexpr std::uint64_t seed = 20240229;

/// Returns rank `rank`'s number at element `i` in call `call`: an integer in [-100, 100].
float number(int rank, std::int64_t i, int call) {
  std::uint64_t x = seed + static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15U +
                    static_cast<std::uint64_t>(rank) * 0xBF58476D1CE4E5B9U +
                    static_cast<std::uint64_t>(call) * 0x94D049BB133111EBU;
  x ^= x >> 31U;
  x *= 0xD6E8FEB86659FD93U;
  x ^= x >> 32U;
  return static_cast<float>(static_cast<std::int64_t>(x % 201) - 100);
}

float sum_of(int size, std::int64_t i, int call) {
  float sum = 0;
  for (int r = 0; r < size; ++r) sum += number(r, i, call);
  return sum;
}

void set(const Tensor& t, std::int64_t i, float value) {
  if (t.dtype() == DType::bf16)
    t.as<bf16>()[i] = bf16(value);
  else
    t.as<float>()[i] = value;
}

void fill(const Tensor& t, int rank, int call, std::int64_t first = 0) {
  for (std::int64_t i = 0; i < t.numel(); ++i) set(t, i, number(rank, first + i, call));
}

float at(const Tensor& t, std::int64_t i) {
  return t.dtype() == DType::bf16 ? static_cast<float>(t.as<bf16>()[i]) : t.as<float>()[i];
}

std::int64_t scratch_in_use() {
  const auto bytes = device::MemoryMeter::instance().by_use();
  return bytes[static_cast<std::size_t>(device::MemoryUse::scratch)];
}

enum class Memory { window, plain };

template <class Implementation>
class CollectivesTest : public ::testing::Test {
 protected:
  CollectivesTest() : axis(test::world()), rank(axis.rank()), size(axis.size()) {}

  device::Buffer gathered(std::int64_t per_rank, Memory memory) {
    per_rank = (per_rank + 63) / 64 * 64;
    if (memory == Memory::window) return axis.allocate_gathered(per_rank);
    return device::Buffer(per_rank * size);
  }
  device::Buffer symmetric(std::int64_t bytes, Memory memory) {
    if (memory == Memory::window) return axis.allocate_symmetric(bytes);
    return device::Buffer(bytes);
  }

  Implementation axis;
  int rank;
  int size;
  std::vector<std::int64_t> lengths{0, 1, 7, 1000, 300'001};
};

using Implementations = ::testing::Types<NodeCollectives, MpiCollectives>;
TYPED_TEST_SUITE(CollectivesTest, Implementations);

TYPED_TEST(CollectivesTest, AllGatherCastsAndPlacesEveryRange) {
  for (const Memory memory : {Memory::window, Memory::plain})
    for (const DType type : {DType::f32, DType::bf16})
      for (const auto n : this->lengths) {
        auto buffer = this->gathered(n * size_of(type), memory);
        device::Buffer own(n * 4);
        const auto whole = buffer.tensor(type, {n * this->size});
        const auto mine = own.tensor(DType::f32, {n});
        for (int call = 0; call < 3; ++call) {
          fill(mine, this->rank, call);
          this->axis.all_gather(whole, mine, {}).wait();
          for (std::int64_t i = 0; i < whole.numel(); ++i)
            ASSERT_EQ(at(whole, i), number(static_cast<int>(i / n), i % n, call)) << "n " << n;
          test::world().barrier();  // nobody may read during the owner's next call
        }
      }
}

TYPED_TEST(CollectivesTest, AllGatherInPlaceAndOfASubView) {
  constexpr std::int64_t n = 4099;
  constexpr std::int64_t skip = 33;
  for (const Memory memory : {Memory::window, Memory::plain}) {
    auto buffer = this->gathered((n + skip) * 4, memory);
    const auto whole =
        buffer.tensor(DType::f32, {(n + skip) * this->size}).slice(skip, n * this->size);
    const auto mine = whole.slice(this->rank * n, n);
    fill(mine, this->rank, 5);
    this->axis.all_gather(whole, mine, {}).wait();
    for (std::int64_t i = 0; i < whole.numel(); ++i)
      ASSERT_EQ(at(whole, i), number(static_cast<int>(i / n), i % n, 5));
  }
}

TYPED_TEST(CollectivesTest, AllGatherIntoSymmetricMemory) {
  constexpr std::int64_t n = 777;
  auto buffer = this->axis.allocate_symmetric(n * this->size * 4);
  const auto whole = buffer.tensor(DType::f32, {n * this->size});
  fill(whole.slice(this->rank * n, n), this->rank, 1);
  this->axis.all_gather(whole, whole.slice(this->rank * n, n), {}).wait();
  for (std::int64_t i = 0; i < whole.numel(); ++i)
    ASSERT_EQ(at(whole, i), number(static_cast<int>(i / n), i % n, 1));
}

TYPED_TEST(CollectivesTest, ReduceScatterSumsAndAccumulates) {
  for (const Memory memory : {Memory::window, Memory::plain})
    for (const DType type : {DType::f32, DType::bf16})
      for (const auto n : this->lengths) {
        auto buffer = this->symmetric(n * this->size * size_of(type) + 64, memory);
        device::Buffer own(n * 4);
        const auto parts = buffer.tensor(type, {n * this->size}, 64);
        const auto mine = own.tensor(DType::f32, {n});
        for (int call = 0; call < 2; ++call) {
          fill(parts, this->rank, call);
          this->axis.reduce_scatter(mine, parts, call == 0 ? Accumulate::no : Accumulate::yes, {})
              .wait();
        }
        for (std::int64_t i = 0; i < n; ++i) {
          const auto j = this->rank * n + i;
          ASSERT_EQ(at(mine, i), sum_of(this->size, j, 0) + sum_of(this->size, j, 1)) << n;
        }
      }
}

TYPED_TEST(CollectivesTest, ReduceScatterOfBf16IsRoundedOnce) {
  for (const Memory memory : {Memory::window, Memory::plain})
    for (const auto n : this->lengths) {
      auto buffer = this->symmetric(n * this->size * 2, memory);
      device::Buffer own(n * 2);
      const auto parts = buffer.tensor(DType::bf16, {n * this->size});
      const auto mine = own.tensor(DType::bf16, {n});
      fill(parts, this->rank, 0);
      this->axis.reduce_scatter(mine, parts, Accumulate::no, {}).wait();
      for (std::int64_t i = 0; i < n; ++i)
        ASSERT_EQ(at(mine, i), static_cast<float>(bf16(sum_of(this->size, this->rank * n + i, 0))))
            << n;
    }
}

TYPED_TEST(CollectivesTest, AllReduceGivesEveryRankTheSameBits) {
  for (const Memory memory : {Memory::window, Memory::plain})
    for (const auto n : this->lengths) {
      auto buffer = this->symmetric(n * 4, memory);
      const auto data = buffer.tensor(DType::f32, {n});
      fill(data, this->rank, 2);
      this->axis.all_reduce(data, {}).wait();
      for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(at(data, i), sum_of(this->size, i, 2)) << n;

      std::mt19937_64 random(seed + static_cast<std::uint64_t>(this->rank));
      std::normal_distribution<float> normal;
      std::vector<float> input(static_cast<std::size_t>(n));
      for (float& x : input) x = normal(random);
      std::string first;
      for (int run = 0; run < 2; ++run) {
        std::copy(input.begin(), input.end(), data.template as<float>());
        this->axis.all_reduce(data, {}).wait();
        const std::string bits(static_cast<const char*>(data.data()),
                               static_cast<std::size_t>(data.bytes()));
        if (run == 0) first = bits;
        ASSERT_TRUE(bits == first) << "two runs differ";
        ASSERT_TRUE(bits == test::world().broadcast(bits)) << "ranks differ";
      }
    }
}

/// Sums the leaves, a power of two, by the balanced binary tree.
float tree_sum(std::span<const float> leaves) {
  if (leaves.size() == 1) return leaves.front();
  const auto half = leaves.size() / 2;
  return tree_sum(leaves.first(half)) + tree_sum(leaves.subspan(half));
}

/// A sum over 8 ranks is then one over 2 sums over 4 (docs/reproducibility.md).
TYPED_TEST(CollectivesTest, SumsAreThoseOfTheTreeOverTheRanks) {
  if (!std::has_single_bit(static_cast<unsigned>(this->size))) GTEST_SKIP() << "no power of two";
  for (const Memory memory : {Memory::window, Memory::plain})
    for (const auto n : {std::int64_t{1}, std::int64_t{1000}, std::int64_t{200'003}}) {
      const auto total = n * this->size;
      std::vector<std::vector<float>> of_rank;
      for (int r = 0; r < this->size; ++r) {
        std::mt19937_64 random(seed + static_cast<std::uint64_t>(r));
        std::normal_distribution<float> normal;
        std::generate_n(std::back_inserter(of_rank.emplace_back()), total,
                        [&] { return normal(random); });
      }
      const auto expected = [&](std::int64_t i) {
        std::vector<float> leaves;
        for (const auto& values : of_rank) leaves.push_back(values[static_cast<std::size_t>(i)]);
        return tree_sum(leaves);
      };
      const auto& own_values = of_rank[static_cast<std::size_t>(this->rank)];
      auto buffer = this->symmetric(total * 4, memory);
      device::Buffer sums(n * 4);
      const auto data = buffer.tensor(DType::f32, {total});
      const auto mine = sums.tensor(DType::f32, {n});
      std::copy(own_values.begin(), own_values.end(), data.template as<float>());
      std::fill_n(mine.template as<float>(), n, 0.1F);
      this->axis.reduce_scatter(mine, data, Accumulate::yes, {}).wait();
      for (std::int64_t i = 0; i < n; ++i)
        ASSERT_EQ(at(mine, i), 0.1F + expected(this->rank * n + i)) << n << ' ' << i;
      this->axis.all_reduce(data, {}).wait();
      for (std::int64_t i = 0; i < total; ++i) ASSERT_EQ(at(data, i), expected(i)) << n << ' ' << i;
    }
}

TYPED_TEST(CollectivesTest, AllReduceOfBf16IsRoundedOnce) {
  for (const Memory memory : {Memory::window, Memory::plain})
    for (const auto n : this->lengths) {
      auto buffer = this->symmetric(n * 2, memory);
      device::Buffer other(n * 2);
      const auto data = buffer.tensor(DType::bf16, {n});
      for (const Tensor& sum : {data, other.tensor(DType::bf16, {n})}) {
        fill(data, this->rank, 0);
        this->axis.all_reduce(sum, data, {}).wait();
        for (std::int64_t i = 0; i < n; ++i)
          ASSERT_EQ(at(sum, i), static_cast<float>(bf16(sum_of(this->size, i, 0)))) << n;
      }
    }
}

TYPED_TEST(CollectivesTest, AllReduceOutOfPlaceHasTheBitsOfReduceScatter) {
  for (const std::int64_t n : {16, 16 * 1001})
    for (const Memory memory : {Memory::window, Memory::plain})
      for (const DType type : {DType::f32, DType::bf16}) {
        const auto total = n * this->size;
        auto buffer = this->symmetric(total * size_of(type), memory);
        device::Buffer own(n * size_of(type));
        device::Buffer sums(total * size_of(type));
        const auto data = buffer.tensor(type, {total});
        const auto mine = own.tensor(type, {n});
        const auto sum = sums.tensor(type, {total});
        const auto fill_at_random = [&] {
          std::mt19937_64 random(seed + static_cast<std::uint64_t>(this->rank));
          std::normal_distribution<float> normal;
          for (std::int64_t i = 0; i < total; ++i) set(data, i, normal(random));
        };
        fill_at_random();
        this->axis.reduce_scatter(mine, data, Accumulate::no, {}).wait();
        fill_at_random();
        this->axis.all_reduce(sum, data, {}).wait();
        ASSERT_EQ(std::memcmp(mine.data(), sum.slice(this->rank * n, n).data(),
                              static_cast<std::size_t>(mine.bytes())),
                  0)
            << n << ' ' << name_of(type);
      }
}

/// The first sum of parts in a dtype allocates scratch and later ones nothing, whatever their
/// sizes, so the plan knows it (simulated_collectives.cpp).
TEST(MpiCollectives, SumsTakeTheScratchThatIsPlanned) {
  if (test::world().size() == 1) GTEST_SKIP() << "needs another rank";
  auto& meter = device::MemoryMeter::instance();
  MpiCollectives axis(test::world());
  for (const DType type : {DType::f32, DType::bf16})
    for (const std::int64_t n : {7, 700'001}) {
      const device::Buffer parts(n * axis.size() * size_of(type)), own(n * size_of(type));
      const auto all = parts.tensor(type, {n * axis.size()});
      const auto mine = own.tensor(type, {n});
      const auto before = meter.in_use() - scratch_in_use();
      meter.start_interval();
      axis.reduce_scatter(mine, all, Accumulate::no, {}).wait();
      axis.all_reduce(all, {}).wait();
      EXPECT_EQ(meter.peak() - before, PairwiseExchange::scratch_bytes(axis.size(), type)) << n;
    }
}

TYPED_TEST(CollectivesTest, BroadcastFromEveryRoot) {
  for (const Memory memory : {Memory::window, Memory::plain})
    for (int root = 0; root < this->size; ++root) {
      auto buffer = this->symmetric(4004, memory);
      const auto data = buffer.tensor(DType::f32, {1001});
      fill(data, this->rank, 3);
      this->axis.broadcast(data, root, {}).wait();
      for (std::int64_t i = 0; i < 1001; ++i) ASSERT_EQ(at(data, i), number(root, i, 3));
    }
}

/// Returns the number of elements that `from` sends to `to` in uneven exchanges: some are zero, and
/// one is longer than a message.
std::int64_t count_between(int from, int to) {
  return from == 0 && to == 1 ? 300'001 : (from * 7 + to * 3) % 4 * 33;
}

TYPED_TEST(CollectivesTest, AllToAllSendsEqualParts) {
  for (const Memory memory : {Memory::window, Memory::plain})
    for (const DType type : {DType::f32, DType::bf16})
      for (const auto n : this->lengths) {
        auto buffer = this->symmetric(n * this->size * size_of(type), memory);
        device::Buffer own(n * this->size * size_of(type));
        const auto sent = buffer.tensor(type, {n * this->size});
        const auto received = own.tensor(type, {n * this->size});
        for (int call = 0; call < 2; ++call) {
          fill(sent, this->rank, call);
          this->axis.all_to_all(received, sent, {}).wait();
          for (std::int64_t i = 0; i < received.numel(); ++i)
            ASSERT_EQ(at(received, i),
                      number(static_cast<int>(i / n), this->rank * n + i % n, call))
                << "n " << n;
        }
      }
}

TYPED_TEST(CollectivesTest, AllToAllSendsUnequalParts) {
  for (const Memory memory : {Memory::window, Memory::plain})
    for (const DType type : {DType::f32, DType::bf16}) {
      std::vector<std::int64_t> sent_counts;
      std::vector<std::int64_t> received_counts;
      for (int peer = 0; peer < this->size; ++peer) {
        sent_counts.push_back(count_between(this->rank, peer));
        received_counts.push_back(count_between(peer, this->rank));
      }
      const auto total = std::reduce(sent_counts.begin(), sent_counts.end());
      auto buffer = this->symmetric(test::world().max(total) * size_of(type), memory);
      device::Buffer own(std::reduce(received_counts.begin(), received_counts.end()) *
                         size_of(type));
      const auto sent = buffer.tensor(type, {total});
      const auto received = own.tensor(type, {own.bytes() / size_of(type)});
      for (int call = 0; call < 2; ++call) {
        fill(sent, this->rank, call);
        this->axis.all_to_all(received, received_counts, sent, sent_counts, {}).wait();
        std::int64_t i = 0;
        for (int peer = 0; peer < this->size; ++peer) {
          std::int64_t first = 0;  // of this rank's part in the peer's tensor
          for (int other = 0; other < this->rank; ++other) first += count_between(peer, other);
          for (std::int64_t j = 0; j < count_between(peer, this->rank); ++j, ++i)
            ASSERT_EQ(at(received, i), number(peer, first + j, call)) << "from rank " << peer;
        }
      }
    }
}

TYPED_TEST(CollectivesTest, SendRecvAroundARingAndAlongALine) {
  for (const Memory memory : {Memory::window, Memory::plain})
    for (const bool ring : {true, false})
      for (const auto n : this->lengths) {
        const bool first = !ring && this->rank == 0;
        const bool last = !ring && this->rank == this->size - 1;
        const int to = last ? CollectiveCall::none : (this->rank + 1) % this->size;
        const int from = first ? CollectiveCall::none : (this->rank + this->size - 1) % this->size;
        // Each rank sends another number of elements.
        const auto sent_count = last ? 0 : n + (n > 0 ? this->rank : 0);
        const auto received_count = first ? 0 : n + (n > 0 ? from : 0);
        auto buffer = this->symmetric((n + this->size) * 4, memory);
        device::Buffer own((n + this->size) * 4);
        const auto sent = buffer.tensor(DType::f32, {sent_count});
        const auto received = own.tensor(DType::f32, {received_count});
        for (int call = 0; call < 3; ++call) {
          fill(sent, this->rank, call);
          this->axis.send_recv(received, from, sent, to, {}).wait();
          for (std::int64_t i = 0; i < received_count; ++i)
            ASSERT_EQ(at(received, i), number(from, i, call)) << "n " << n;
        }
      }
}

/// The rank that expects a wrong size says so; the others finish, and so do later collectives.
TYPED_TEST(CollectivesTest, WrongCountsAreToldByTheRankThatReceives) {
  if (this->size == 1) GTEST_SKIP() << "needs another rank";
  constexpr std::int64_t n = 300'000;
  const auto received_if = [](const auto& event) -> std::string {
    try {
      event.wait();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::internal_error);
      return error.what();
    }
    return {};
  };
  for (const Memory memory : {Memory::window, Memory::plain})
    for (const std::int64_t wrong : {n + 5, std::int64_t{5}, std::int64_t{0}}) {
      TypeParam axis(test::world());  // a stream runs nothing after an error
      axis.set_subject("layers.1");
      auto buffer = memory == Memory::window ? axis.allocate_symmetric(n * this->size * 4)
                                             : device::Buffer(n * this->size * 4);
      device::Buffer own((n + 5) * this->size * 4);
      std::vector<std::int64_t> sent_counts(static_cast<std::size_t>(this->size), n);
      auto received_counts = sent_counts;
      if (this->rank == 1) received_counts[0] = wrong;
      const auto total = std::reduce(received_counts.begin(), received_counts.end());
      const auto said = received_if(
          axis.all_to_all(own.tensor(DType::f32, {total}), received_counts,
                          buffer.tensor(DType::f32, {n * this->size}), sent_counts, {}));
      EXPECT_EQ(said.empty(), this->rank != 1) << said;
      if (this->rank == 1) {
        EXPECT_EQ(said,
                  fmt::format("rank 1 on {} expects {} bytes from rank 0 in the all-to-all of "
                              "layers.1 along world, but that sends {}: the counts of the two "
                              "ranks differ, which is a bug",
                              this_process().host, 4 * wrong, 4 * n));
      }
      test::world().barrier();

      TypeParam other(test::world());
      const bool receives = this->rank == 1;
      const bool sends = this->rank == 0;
      const auto said_of_send = received_if(other.send_recv(
          own.tensor(DType::f32, {receives ? wrong : 0}), receives ? 0 : CollectiveCall::none,
          buffer.tensor(DType::f32, {sends ? n : 0}), sends ? 1 : CollectiveCall::none, {}));
      EXPECT_EQ(said_of_send.empty(), !receives) << said_of_send;
      test::world().barrier();
    }
}

TYPED_TEST(CollectivesTest, CountsTheBytesForOtherRanks) {
  const std::int64_t n = 100;
  device::Buffer buffer(n * this->size * 4);
  device::Buffer own(n * this->size * 4);
  const auto sent = buffer.tensor(DType::f32, {n * this->size});
  const auto received = own.tensor(DType::f32, {n * this->size});
  this->axis.all_to_all(received, sent, {}).wait();
  std::int64_t expected = 4 * n * (this->size - 1);
  EXPECT_EQ(this->axis.bytes_sent(), expected);
  // Everything to rank 0.
  std::vector<std::int64_t> sent_counts(static_cast<std::size_t>(this->size), 0);
  std::vector<std::int64_t> received_counts(static_cast<std::size_t>(this->size),
                                            this->rank == 0 ? n : 0);
  sent_counts[0] = n;
  this->axis
      .all_to_all(received.slice(0, this->rank == 0 ? n * this->size : 0), received_counts,
                  sent.slice(0, n), sent_counts, {})
      .wait();
  expected += this->rank == 0 ? 0 : 4 * n;
  EXPECT_EQ(this->axis.bytes_sent(), expected);
  const int to = (this->rank + 1) % this->size;
  const int from = (this->rank + this->size - 1) % this->size;
  this->axis.send_recv(received.slice(0, n), from, sent.slice(0, n), to, {}).wait();
  EXPECT_EQ(this->axis.bytes_sent(), expected + (this->size > 1 ? 4 * n : 0));
}

/// Runs a training step's pattern many times over the same buffers, without waiting in between.
TYPED_TEST(CollectivesTest, ManyCallsBackToBackOnTheSameBuffers) {
  constexpr std::int64_t n = 513;
  auto gathered = this->gathered(n * 2, Memory::window);
  auto symmetric = this->symmetric(n * this->size * 4, Memory::window);
  device::Buffer own(n * 4);
  device::Buffer sums(n * 4);
  const auto whole = gathered.tensor(DType::bf16, {n * this->size});
  const auto parts = symmetric.tensor(DType::f32, {n * this->size});
  const auto mine = own.tensor(DType::f32, {n});
  const auto sum = sums.tensor(DType::f32, {n});
  auto compute = device::Stream::worker();
  std::int64_t wrong = 0;
  device::Event computed;
  for (int call = 0; call < 100; ++call) {
    compute.run([=, this] { fill(mine, this->rank, call); });
    const auto all = this->axis.all_gather(whole, mine, compute.record());
    compute.wait(all);
    compute.run([=, this, &wrong] {
      for (std::int64_t i = 0; i < whole.numel(); ++i)
        wrong += at(whole, i) != number(static_cast<int>(i / n), i % n, call) ? 1 : 0;
      fill(parts, this->rank, call);
    });
    const auto reduced = this->axis.reduce_scatter(sum, parts, Accumulate::no, compute.record());
    compute.wait(reduced);
    compute.run([=, this, &wrong] {
      for (std::int64_t i = 0; i < n; ++i)
        wrong += at(sum, i) != sum_of(this->size, this->rank * n + i, call) ? 1 : 0;
    });
  }
  compute.record().wait();
  EXPECT_EQ(wrong, 0);
}

TYPED_TEST(CollectivesTest, CountsTheBytesOfTheFormulas) {
  const std::int64_t n = 100;
  const std::int64_t others = this->size - 1;
  device::Buffer buffer(n * this->size * 4);
  device::Buffer own(n * 4);
  const auto all = buffer.tensor(DType::f32, {n * this->size});
  const auto mine = own.tensor(DType::f32, {n});
  std::int64_t expected = 0;
  this->axis.all_gather(all, mine, {}).wait();
  EXPECT_EQ(this->axis.bytes_sent(), expected += 4 * n * others);
  this->axis.reduce_scatter(mine, buffer.tensor(DType::bf16, {n * this->size}), Accumulate::no, {})
      .wait();
  EXPECT_EQ(this->axis.bytes_sent(), expected += 2 * n * others);
  this->axis.all_reduce(all, {}).wait();
  EXPECT_EQ(this->axis.bytes_sent(), expected += 8 * n * others);
  this->axis.broadcast(mine, 0, {}).wait();
  EXPECT_EQ(this->axis.bytes_sent(), expected += this->rank == 0 && this->size > 1 ? 4 * n : 0);
}

TYPED_TEST(CollectivesTest, TheTimeOfALateRankIsExposedWhereItIsWaitedFor) {
  using namespace std::chrono_literals;
  device::Buffer buffer(4000);
  const auto data = buffer.tensor(DType::f32, {1000});
  auto& compute = device::compute_stream();
  auto late = 200ms;
  const auto reduce_late = [&](auto in_the_meantime) {
    test::world().barrier();
    const auto before = this->axis.seconds_exposed();
    if (this->rank == 0) std::this_thread::sleep_for(late);
    const auto reduced = this->axis.all_reduce(data, {});
    in_the_meantime(reduced);
    compute.wait(reduced);
    return this->axis.seconds_exposed() - before;
  };
  // A rank that gets no processor comes late, too: then again, with more time.
  const auto is_exposed = [&] {
    const double exposed = reduce_late([](const auto&) {});
    const bool seen = this->rank == 0 || (exposed > 0.1 && this->axis.seconds() > 0.1);
    return test::world().max(seen ? 0 : 1) == 0;
  };
  bool seen = is_exposed();
  for (; !seen && late < 10s; seen = is_exposed()) late *= 2;
  EXPECT_TRUE(seen);
  // A collective is not exposed if it is complete, or if only other streams than compute wait for
  // it.
  const double hidden = reduce_late([](const auto& reduced) { reduced.wait(); });
  EXPECT_EQ(hidden, 0);
  auto other = device::Stream::worker();
  const double elsewhere = reduce_late([&](const auto& reduced) {
    other.wait(reduced);
    other.record().wait();
  });
  EXPECT_EQ(elsewhere, 0);
}

TYPED_TEST(CollectivesTest, AnErrorInAWorkerReachesTheWaiter) {
  auto bad = device::Stream::worker();
  bad.run([] { throw std::runtime_error("bad shard"); });
  device::Buffer own(4);
  const auto event = this->axis.all_reduce(own.tensor(DType::f32, {1}), bad.record());
  EXPECT_THROW(event.wait(), std::runtime_error);
}

TYPED_TEST(CollectivesTest, RefusesTensorsThatDoNotFit) {
  device::Buffer buffer(4096);
  const auto mine = buffer.tensor(DType::f32, {8});
  const auto other = buffer.tensor(DType::f32, {8 * this->size + 1}, 512);
  EXPECT_THROW(this->axis.all_gather(other, mine, {}), Error);
  EXPECT_THROW(this->axis.reduce_scatter(mine, other, Accumulate::no, {}), Error);
  EXPECT_THROW(this->axis.broadcast(mine, this->size, {}), Error);
  EXPECT_THROW(this->axis.all_to_all(mine, other, {}), Error);
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(this->size), 9);
  EXPECT_THROW(this->axis.all_to_all(mine, counts, mine, counts, {}), Error);
  EXPECT_THROW(this->axis.send_recv(mine, this->size, {}, CollectiveCall::none, {}), Error);
  EXPECT_THROW(this->axis.send_recv(mine, CollectiveCall::none, {}, CollectiveCall::none, {}),
               Error);
}

TYPED_TEST(CollectivesTest, BuffersAreZeroAlignedAndCounted) {
  const auto before = device::MemoryMeter::instance().in_use();
  auto whole = this->axis.allocate_gathered(640);
  auto own = this->axis.allocate_symmetric(100);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(whole.data()) % 64, 0U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(own.data()) % 64, 0U);
  for (std::int64_t i = 0; i < whole.bytes(); ++i) ASSERT_EQ(whole.data()[i], std::byte{0});
  for (std::int64_t i = 0; i < own.bytes(); ++i) ASSERT_EQ(own.data()[i], std::byte{0});
  const auto shared = std::is_same_v<TypeParam, NodeCollectives> ? 640 : 640 * this->size;
  EXPECT_EQ(device::MemoryMeter::instance().in_use() - before, shared + 100);
}

/// Returns how many mappings of shared files this process has: windows, for one.
std::ptrdiff_t shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::ptrdiff_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(" rw-s ") != line.npos;
  return count;
}

TYPED_TEST(CollectivesTest, AFreedSymmetricBufferLeavesNothing) {
  const auto exchange = [&] {
    auto buffer = this->axis.allocate_symmetric(this->size * 4);
    const auto sent = buffer.tensor(DType::f32, {this->size});
    std::vector<float> received(static_cast<std::size_t>(this->size));
    for (int q = 0; q < this->size; ++q)
      sent.template as<float>()[q] = static_cast<float>(10 * this->rank + q);
    this->axis.all_to_all(Tensor(received.data(), DType::f32, {this->size}), sent, {}).wait();
    for (int q = 0; q < this->size; ++q)
      EXPECT_EQ(received[static_cast<std::size_t>(q)], static_cast<float>(10 * q + this->rank));
    this->axis.free_symmetric(std::move(buffer));
  };
  exchange();
  const auto before = shared_mappings();
  for (int i = 0; i < 5; ++i) exchange();
  EXPECT_EQ(shared_mappings(), before);
}

/// A single rank allocates from the heap, several from a file system.
TEST(SharedWindow, TooMuchIsAUserError) {
  const auto alone = test::world().split(test::world().rank(), 0);
  for (const Communicator* group : {&test::world(), &alone}) {
    ExitCode code = ExitCode::done;
    try {
      const SharedWindow window(*group, std::int64_t{1} << 60);
    } catch (const Error& error) {
      code = error.code();
    }
    EXPECT_EQ(code, ExitCode::bad_input);
  }
}

}  // namespace
}  // namespace llamesh::comm
