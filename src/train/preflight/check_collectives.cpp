#include <fmt/format.h>

#include "comm/mesh/device_mesh.hpp"
#include "device/buffer.hpp"
#include "device/device.hpp"
#include "train/preflight/checks.hpp"

namespace llamesh::train {
namespace {

/// Returns a test value: an integer so small that sums over 16,000 ranks are exact in fp32.
/// 7 has no factor in common with the usual ranks per node: other nodes have other values.
float value_of(int rank, std::int64_t i) {
  return static_cast<float>((rank % 7 + 1) * (i % 127));
}

/// Writes expected(i) for all i to the tensor.
template <class Expected>
void fill(const Tensor& tensor, const Expected& expected) {
  std::vector<float> values(static_cast<std::size_t>(tensor.numel()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = expected(static_cast<std::int64_t>(i));
  device::upload(device::compute_stream(), tensor, values.data());
}

/// Returns the first i at which the tensor differs from expected(i), or -1.
template <class Expected>
std::int64_t first_wrong(const Tensor& tensor, const device::Event& after,
                         const Expected& expected) {
  after.wait();
  std::vector<float> values(static_cast<std::size_t>(tensor.numel()));
  device::download(device::compute_stream(), values.data(), tensor);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] != expected(static_cast<std::int64_t>(i))) return static_cast<std::int64_t>(i);
  return -1;
}

/// Runs each collective of an axis on known values; describes any wrong result on this rank.
std::string wrong_answers(comm::Collectives& axis, std::int64_t n) {
  auto gathered = axis.allocate_gathered(n * 4);
  auto symmetric = axis.allocate_symmetric(n * 4 * axis.size());
  device::Buffer part(n * 4);
  const auto whole = gathered.tensor(DType::f32, {n * axis.size()});
  const auto parts = symmetric.tensor(DType::f32, {n * axis.size()});
  const auto mine = part.tensor(DType::f32, {n});
  const auto own = [&](std::int64_t i) { return value_of(axis.rank(), i); };
  float factor = 0;
  for (int rank = 0; rank < axis.size(); ++rank) factor += value_of(rank, 1);
  const auto summed = [&](std::int64_t i) { return factor * value_of(0, i); };

  fill(mine, own);
  auto wrong = first_wrong(whole, axis.all_gather(whole, mine, {}), [&](std::int64_t i) {
    return value_of(static_cast<int>(i / n), i % n);
  });
  if (wrong >= 0)
    return fmt::format("all-gather: element {} from rank {} of the axis is wrong", wrong % n,
                       wrong / n);
  fill(parts, own);
  wrong = first_wrong(mine, axis.reduce_scatter(mine, parts, Accumulate::no, {}),
                      [&](std::int64_t i) { return summed(axis.rank() * n + i); });
  if (wrong >= 0) return fmt::format("reduce-scatter: element {} is wrong", wrong);
  fill(parts, own);
  wrong = first_wrong(parts, axis.all_reduce(parts, {}), summed);
  if (wrong >= 0) return fmt::format("all-reduce: element {} is wrong", wrong);
  return {};
}

}  // namespace

Finding check_collectives(const Subject& at, comm::DeviceMesh& mesh) {
  Finding finding{"collectives", "", {}};
  for (const auto& axis : mesh.axes()) {
    constexpr std::int64_t n = 1 << 18;
    const auto wrong = wrong_answers(*axis.collectives, n);
    at.world.barrier();
    const auto start = std::chrono::steady_clock::now();
    const auto again = wrong_answers(*axis.collectives, n);
    const auto microseconds = at.world.max(static_cast<std::int64_t>(1e6 * seconds_since(start)));
    collect(finding, at, wrong.empty() ? again : fmt::format("axis {}: {}", axis.name, wrong));
    finding.text += fmt::format(
        "{}{}={} {}", finding.text.empty() ? "" : ", ", axis.name, axis.size,
        axis.size == 1
            ? "alone"
            : fmt::format("right in {:.1f} ms", 1e-3 * static_cast<double>(microseconds)));
  }
  if (!finding.bad.empty()) finding.text = "give wrong answers";
  return finding;
}

}  // namespace llamesh::train
