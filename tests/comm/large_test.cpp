#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>

#include "comm/transports/mpi_collectives.hpp"
#include "comm/transports/node_collectives.hpp"
#include "support.hpp"

// Tests buffers above 2 GiB, beyond a 32-bit byte count.

namespace llamesh::comm {
namespace {

constexpr std::int64_t numel = (std::int64_t{1} << 29U) + (std::int64_t{1} << 22U);  // 2.02 GiB
constexpr std::int64_t stride = 65521;  // between elements that are checked

std::int64_t available_gib() {
  std::ifstream in("/proc/meminfo");
  for (std::string key; in >> key;)
    if (key == "MemAvailable:") {
      std::int64_t kib = 0;
      in >> kib;
      return kib >> 20U;
    }
  return 0;
}

float value(std::int64_t i) {
  return static_cast<float>(i % 8191);
}

class Large : public testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<Collectives> make() const {
    if (GetParam()) return std::make_unique<NodeCollectives>(test::world());
    return std::make_unique<MpiCollectives>(test::world());
  }
};

TEST_P(Large, AllGather) {
  if (test::world().min(available_gib()) < 10) GTEST_SKIP() << "needs 10 GiB of free memory";
  const auto axis = make();
  const std::int64_t n = numel / axis->size();
  const auto buffer = axis->allocate_gathered(n * 4);
  const Tensor whole = buffer.tensor(DType::f32, {numel});
  const Tensor mine = whole.slice(axis->rank() * n, n);
  for (std::int64_t i = 0; i < n; i += stride) mine.as<float>()[i] = value(axis->rank() * n + i);
  axis->all_gather(whole, mine, {}).wait();
  for (int r = 0; r < axis->size(); ++r)
    for (std::int64_t i = 0; i < n; i += stride)
      ASSERT_EQ(whole.as<float>()[r * n + i], value(r * n + i)) << r << " " << i;
}

TEST_P(Large, ReduceScatterAndAllReduce) {
  if (test::world().min(available_gib()) < 10) GTEST_SKIP() << "needs 10 GiB of free memory";
  const auto axis = make();
  const std::int64_t n = numel / axis->size();
  const auto buffer = axis->allocate_symmetric(numel * 4);
  const Tensor parts = buffer.tensor(DType::f32, {numel});
  for (std::int64_t i = 0; i < numel; i += stride)
    parts.as<float>()[i] = value(i) + static_cast<float>(axis->rank());
  const device::Buffer out(n * 4);
  axis->reduce_scatter(out.tensor(DType::f32, {n}), parts, Accumulate::no, {}).wait();
  const auto sum_of = [&](std::int64_t i) {
    const auto s = static_cast<float>(axis->size());
    return s * value(i) + s * (s - 1) / 2;
  };
  const std::int64_t first = axis->rank() * n;
  for (std::int64_t i = (first + stride - 1) / stride * stride; i < first + n; i += stride)
    ASSERT_EQ(reinterpret_cast<float*>(out.data())[i - first], sum_of(i)) << i;
  axis->all_reduce(parts, {}).wait();
  for (std::int64_t i = 0; i < numel; i += stride) ASSERT_EQ(parts.as<float>()[i], sum_of(i)) << i;
}

INSTANTIATE_TEST_SUITE_P(Paths, Large, testing::Bool(),
                         [](const auto& node) { return node.param ? "node" : "messages"; });

}  // namespace
}  // namespace llamesh::comm
