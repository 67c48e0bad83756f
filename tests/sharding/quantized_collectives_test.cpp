#include "sharding/quantized_collectives.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "comm/mesh/topology.hpp"
#include "device/device.hpp"
#include "support.hpp"

// Numbers are small integers, so that a node's sums are exact and have the same bits in any order.
namespace llamesh::sharding {
namespace {

using ops::BlockCodes;
using ops::CodeFormat;

device::Stream& here() {
  return device::compute_stream();
}

/// Returns number i of a rank: an integer from -100 to 100.
float number(int rank, std::int64_t i) {
  auto x = static_cast<std::uint64_t>(i + 1) * 0x9E3779B97F4A7C15U +
           static_cast<std::uint64_t>(rank + 1) * 0xBF58476D1CE4E5B9U;
  x ^= x >> 31U;
  x *= 0xD6E8FEB86659FD93U;
  return static_cast<float>(static_cast<std::int64_t>((x >> 20U) % 201) - 100);
}

/// fp32 or bf16 numbers with their memory.
struct Numbers {
  explicit Numbers(std::int64_t count, DType dtype = DType::f32)
      : buffer(std::max<std::int64_t>(count, 1) * size_of(dtype)),
        tensor(buffer.tensor(dtype, {count})) {}
  explicit Numbers(const std::vector<float>& values, DType dtype = DType::f32)
      : Numbers(std::ssize(values), dtype) {
    Tensor from(const_cast<float*>(values.data()), DType::f32, {std::ssize(values)});
    ops::copy(here(), tensor, from);
  }
  std::vector<float> values() const {
    std::vector<float> all(static_cast<std::size_t>(tensor.numel()));
    ops::copy(here(), Tensor(all.data(), DType::f32, {tensor.numel()}), tensor);
    return all;
  }
  device::Buffer buffer;
  Tensor tensor;
};

/// Numbers as codes with their memory.
struct Codes {
  Codes(std::int64_t parts, std::int64_t part_numel, CodeFormat format)
      : buffer(parts * BlockCodes::part_bytes(part_numel, format)),
        q{.bytes = buffer.tensor(DType::i8, {parts, BlockCodes::part_bytes(part_numel, format)}),
          .part_numel = part_numel,
          .format = format} {}
  device::Buffer buffer;
  BlockCodes q;
};

/// Returns what is left of numbers that were codes.
std::vector<float> rounded(const std::vector<float>& values, CodeFormat format,
                           DType dtype = DType::f32) {
  const Numbers from(values, dtype), to(std::ssize(values), dtype);
  const Codes codes(1, std::ssize(values), format);
  ops::quantize_blocks(here(), codes.q, from.tensor, {});
  ops::dequantize_blocks(here(), to.tensor, codes.q);
  return to.values();
}

std::vector<float> numbers_of(int rank, std::int64_t first, std::int64_t count) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(number(rank, first + i));
  return values;
}

/// Returns the sums over ranks [begin, end).
std::vector<float> sums_of(int begin, int end, std::int64_t first, std::int64_t count) {
  std::vector<float> sums(static_cast<std::size_t>(count));
  for (int rank = begin; rank < end; ++rank)
    for (std::int64_t i = 0; i < count; ++i)
      sums[static_cast<std::size_t>(i)] += number(rank, first + i);
  return sums;
}

/// A mesh with one axis over all ranks, on nodes with this many.
comm::DeviceMesh mesh_of(const char* axis, int ranks_per_node) {
  const auto& world = test::world();
  return {world, comm::discover_topology(world, ranks_per_node),
          comm::ParallelDims({{axis, world.size()}}).split(axis, ranks_per_node)};
}

std::vector<int> node_sizes() {
  std::vector<int> sizes;
  for (const int size : {1, 2, 4})
    if (test::world().size() % size == 0) sizes.push_back(size);
  return sizes;
}

std::vector<std::int64_t> sizes() {
  std::vector<std::int64_t> all(70);
  std::iota(all.begin(), all.end(), 1);
  for (const std::int64_t size : {256, 700, 1000}) all.push_back(size);
  return all;
}

TEST(QuantizedGather, GivesAllRanksTheSameRoundedNumbers) {
  const int ranks = test::world().size(), rank = test::world().rank();
  for (const int per_node : {1, ranks})
    for (const auto dtype : {DType::f32, DType::bf16}) {
      auto mesh = mesh_of("shard", per_node);
      auto& axis = mesh.axis("shard");
      QuantizedGather gather(axis, 1, 1000, dtype, CodeFormat::int8, GatherSource::numbers);
      QuantizationSquares expected;
      for (const auto numel : sizes()) {
        SCOPED_TRACE(::testing::Message() << numel << " numbers, " << per_node << " per node");
        const Numbers mine(numbers_of(rank, 0, numel));
        const auto whole = axis.collectives->allocate_gathered((numel * 4 + 63) / 64 * 64);
        const auto all = whole.tensor(dtype, {numel * ranks});
        gather.all_gather(all, mine.tensor, {}).wait();
        Numbers seen(numel * ranks);
        ops::copy(here(), seen.tensor, all);
        mesh.group(mesh.dims().all()).barrier();  // shared memory may now be freed
        std::vector<float> wanted;
        for (int r = 0; r < ranks; ++r) {
          const Numbers one(rounded(numbers_of(r, 0, numel), CodeFormat::int8), dtype);
          for (const float value : one.values()) wanted.push_back(value);
        }
        ASSERT_EQ(seen.values(), wanted);
        const auto own = numbers_of(rank, 0, numel), as_sent = rounded(own, CodeFormat::int8);
        for (std::size_t i = 0; i < own.size(); ++i)
          expected += {std::pow(own[i] - as_sent[i], 2.0), std::pow(own[i], 2.0)};
      }
      const auto squares = gather.take_squares();
      EXPECT_NEAR(squares.errors, expected.errors, 1e-4 * expected.errors);
      EXPECT_NEAR(squares.numbers, expected.numbers, 1e-4 * expected.numbers);
      EXPECT_EQ(gather.take_squares().numbers, 0.0);
    }
}

TEST(QuantizedReduceScatter, AddsRoundedSumsOfTheNodes) {
  const int ranks = test::world().size(), rank = test::world().rank();
  for (const int per_node : node_sizes())
    for (const auto format : {CodeFormat::int8, CodeFormat::int4})
      for (const auto dtype : {DType::f32, DType::bf16}) {
        if (per_node == ranks) continue;
        auto mesh = mesh_of("shard", per_node);
        QuantizedReduceScatter exchange(mesh, mesh.dims().all(), 1000, format);
        for (const auto numel : sizes())
          for (const auto accumulate : {Accumulate::no, Accumulate::yes}) {
            SCOPED_TRACE(::testing::Message() << numel << " numbers, " << per_node << " per node, "
                                              << bits_of(format) << " bits");
            const Numbers parts(numbers_of(rank, 0, numel * ranks), dtype), mine(numel);
            ops::fill(here(), mine.tensor, 3.0F);
            exchange.reduce_scatter(mine.tensor, parts.tensor, accumulate, {}).wait();
            std::vector<float> expected(static_cast<std::size_t>(numel));
            for (int first = 0; first < ranks; first += per_node) {
              const auto of_node =
                  rounded(sums_of(first, first + per_node, rank * numel, numel), format);
              for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += of_node[i];
            }
            const auto seen = mine.values();
            for (std::size_t i = 0; i < expected.size(); ++i)
              ASSERT_NEAR(seen[i], expected[i] + (accumulate == Accumulate::yes ? 3.0F : 0.0F),
                          1e-3)
                  << i;
          }
      }
}

TEST(QuantizedAllReduce, GivesAllRanksTheSameSums) {
  const auto& world = test::world();
  const int ranks = world.size(), rank = world.rank();
  for (const auto format : {CodeFormat::int8, CodeFormat::int4}) {
    auto mesh = mesh_of("replicate", 1);
    QuantizedAllReduce exchange(mesh.axis("replicate"), 1000, 0, format);
    for (const auto numel : sizes()) {
      SCOPED_TRACE(::testing::Message() << numel << " numbers, " << bits_of(format) << " bits");
      const Numbers data(numbers_of(rank, 0, numel));
      exchange.all_reduce(data.tensor, {}).wait();
      const auto slice = (numel + ranks - 1) / ranks;
      std::vector<float> expected;
      for (std::int64_t first = 0; first < numel; first += slice) {
        const auto count = std::min(slice, numel - first);
        std::vector<float> sums(static_cast<std::size_t>(count));
        for (int r = 0; r < ranks; ++r) {
          const auto of_rank = rounded(numbers_of(r, first, count), format);
          for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += of_rank[i];
        }
        for (const float value : rounded(sums, format)) expected.push_back(value);
      }
      const auto seen = data.values();
      // The last bits of a sum may move it to the next code.
      const float step = 100.0F * static_cast<float>(ranks) / (ops::largest_code(format));
      for (std::size_t i = 0; i < seen.size(); ++i)
        ASSERT_NEAR(seen[i], expected[i], 1.01F * step) << i;
      std::vector<std::byte> bytes(seen.size() * 4);
      std::memcpy(bytes.data(), seen.data(), bytes.size());
      const std::string mine(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      for (const auto& other : world.all_gather(mine)) ASSERT_EQ(other, mine);
    }
  }
}

// The same numbers again and again: what a call leaves out, the next ones make up for, so that the
// mean over many calls is far nearer than a call alone.
TEST(QuantizedAllReduce, FeedsErrorsBack) {
  const auto& world = test::world();
  const int ranks = world.size(), rank = world.rank(), calls = 50;
  auto mesh = mesh_of("replicate", 1);
  QuantizedAllReduce exchange(mesh.axis("replicate"), 1000, 1000, CodeFormat::int4);
  for (const auto numel : sizes()) {
    SCOPED_TRACE(::testing::Message() << numel << " numbers");
    const Numbers error(numel);
    ops::fill(here(), error.tensor, 0);
    std::vector<double> mean(static_cast<std::size_t>(numel));
    for (int call = 0; call < calls; ++call) {
      const Numbers data(numbers_of(rank, 0, numel));
      exchange.all_reduce(data.tensor, {}, {}, error.tensor).wait();
      const auto seen = data.values();
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += seen[i] / calls;
    }
    const auto sums = sums_of(0, ranks, 0, numel);
    const double step = 100.0 * ranks / 7;  // of the largest numbers
    for (std::size_t i = 0; i < mean.size(); ++i)
      ASSERT_NEAR(mean[i], sums[i], 3 * ranks * step / calls) << i;
  }
}

// Exact parts are sums to the last bit, and the others what they are beside zeros; no error is left
// of them.
TEST(QuantizedAllReduce, AddsUpExactPartsInFp32) {
  const auto& world = test::world();
  const int ranks = world.size(), rank = world.rank();
  auto mesh = mesh_of("replicate", 1);
  QuantizedAllReduce exchange(mesh.axis("replicate"), 1000, 300, CodeFormat::int4);
  const auto numbers = numbers_of(rank, 0, 1000);
  const auto is_exact = [](std::size_t i) { return i < 3 || (i >= 250 && i < 500); };
  auto others = numbers;
  for (std::size_t i = 0; i < others.size(); ++i)
    if (is_exact(i)) others[i] = 0;
  const Numbers data(numbers), without(others), error(1000), error_without(1000);
  for (const auto* each : {&error, &error_without}) ops::fill(here(), each->tensor, 0);
  const std::vector<Tensor> exact{data.tensor.slice(0, 3), data.tensor.slice(250, 250)};
  exchange.all_reduce(data.tensor, {}, exact, error.tensor).wait();
  exchange.all_reduce(without.tensor, {}, {}, error_without.tensor).wait();
  const auto sums = sums_of(0, ranks, 0, 1000);
  const auto seen = data.values(), rest = without.values(), left_out = error.values();
  for (std::size_t i = 0; i < seen.size(); ++i) {
    ASSERT_EQ(seen[i], is_exact(i) ? static_cast<float>(sums[i]) : rest[i]) << i;
    ASSERT_EQ(is_exact(i) ? left_out[i] : 0, 0) << i;
  }
  EXPECT_EQ(left_out, error_without.values());
}

TEST(QuantizedExchange, LeavesWhatIsNotFinite) {
  const auto& world = test::world();
  const int ranks = world.size();
  constexpr std::int64_t numel = 600;
  auto mesh = mesh_of("shard", 1);
  QuantizedReduceScatter reduce(mesh, mesh.dims().all(), numel, CodeFormat::int4);
  QuantizedAllReduce all_reduce(mesh.axis("shard"), numel, 0, CodeFormat::int4);
  QuantizedGather gather(mesh.axis("shard"), 1, numel, DType::f32, CodeFormat::int8,
                         GatherSource::numbers);
  const auto bad = std::numeric_limits<float>::infinity();
  const auto count_of_bad = [](const Numbers& numbers) {
    return std::ranges::count_if(numbers.values(), [](float v) { return !std::isfinite(v); });
  };
  auto values = numbers_of(world.rank(), 0, numel * ranks);
  if (world.rank() == 0) values[300] = bad;  // in rank 0's part, its second block
  const Numbers parts(values), mine(numel), whole(numel * ranks);
  reduce.reduce_scatter(mine.tensor, parts.tensor, Accumulate::no, {}).wait();
  EXPECT_EQ(count_of_bad(mine), world.rank() == 0 ? BlockCodes::block : 0);
  gather.all_gather(whole.tensor, parts.tensor.slice(0, numel), {}).wait();
  EXPECT_EQ(count_of_bad(whole), BlockCodes::block);
  all_reduce.all_reduce(mine.tensor, {}).wait();
  EXPECT_GT(count_of_bad(mine), 0);
}

}  // namespace
}  // namespace llamesh::sharding
