#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "core/median.hpp"
#include "device/buffer.hpp"
#include "device/device.hpp"
#include "device/gpu_health.hpp"
#include "ops/gemm_rate.hpp"
#include "ops/ops.hpp"
#include "train/preflight/checks.hpp"
#include "train/preflight/slow_nodes.hpp"

namespace llamesh::train {
namespace {

constexpr int windows = 5;
constexpr int measurements = 4;  // a slow rank or link must be slow in all of them
constexpr double window_seconds = 0.02;

/// A unit in which rates are printed.
struct Unit {
  const char* name;
  double size;
};
constexpr Unit gigaflops{"GFLOP/s", 1e9};
constexpr Unit gigabytes{"GB/s", 1e9};

std::string rate_text(double rate, const Unit& unit) {
  const double value = rate / unit.size;
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 0, unit.name);
}

std::string comparison(double best, double usual, const Unit& unit) {
  return fmt::format("{}, the median is {} ({:.0f} %)", rate_text(best, unit),
                     rate_text(usual, unit), 100 * best / usual);
}

/// Returns every rank's windows, by rank.
std::vector<Windows> gather(const comm::Communicator& world, const Windows& mine) {
  std::vector<Windows> all(static_cast<std::size_t>(world.size()));
  for (const double rate : mine) {
    const auto rates = world.all_gather(static_cast<std::int64_t>(rate), "rates of the nodes");
    for (std::size_t r = 0; r < all.size(); ++r) all[r].push_back(static_cast<double>(rates[r]));
  }
  return all;
}

/// Returns what is slow in each of several measurements, since other work on a node passes. Makes
/// the later ones only if needed.
template <class Slow>
std::vector<Slow> found_each_time(std::vector<Slow> found,
                                  const std::function<std::vector<Slow>()>& again,
                                  const std::function<bool(const Slow&, const Slow&)>& is_same) {
  for (int time = 1; time < measurements && !found.empty(); ++time) {
    const auto now = again();
    std::erase_if(found, [&](const Slow& slow) {
      return std::ranges::none_of(now, [&](const Slow& other) { return is_same(slow, other); });
    });
  }
  return found;
}

/// Measures and compares the rates of all ranks.
Finding compare_ranks(const Subject& at, const char* name, const Unit& unit,
                      const std::function<Windows()>& measure) {
  const auto rates = gather(at.world, measure());
  const auto slow = found_each_time<SlowRank>(
      slow_ranks(rates, at.hosts),
      [&] { return slow_ranks(gather(at.world, measure()), at.hosts); },
      [](const SlowRank& a, const SlowRank& b) { return a.rank == b.rank; });
  std::vector<double> usual;
  for (const auto& of_rank : rates) usual.push_back(median(of_rank));
  const auto slowest = static_cast<std::size_t>(std::ranges::min_element(usual) - usual.begin());
  Finding finding{
      name,
      fmt::format("median {} a rank, slowest {} (rank {} on {})", rate_text(median(usual), unit),
                  rate_text(usual[slowest], unit), slowest, at.host_of(slowest)),
      {}};
  for (const auto& one : slow) {
    const auto& host = at.host_of(static_cast<std::size_t>(one.rank));
    const auto text =
        fmt::format("rank {} reaches {}", one.rank, comparison(one.best, one.median, unit));
    if (one.is_certain)
      finding.bad.emplace(host, text);
    else
      finding.warnings.push_back(fmt::format(
          "{} on {}; with only two nodes, it is unclear which one is at fault", text, host));
  }
  return finding;
}

/// Returns the share of the time in which a CPU quota lets the threads run. The windows are shorter
/// than the kernel's period (0.1 s), so a throttled rank may be at full speed in one of them.
double share_of_quota() {
  if (device::kind() != device::Kind::cpu) return 1;
  return std::min(1.0, device::cpu_quota() / omp_get_max_threads());
}

/// Returns bytes read and written per second by copies between large tensors.
Windows memory_rates(const comm::Communicator& world) {
  auto& stream = device::compute_stream();
  const std::int64_t mebibytes = stream.on_gpu() ? 512 : 32;
  const std::int64_t n = std::min(mebibytes << 20, device::memory_bytes() / 64) / 4;
  const device::Buffer buffer(2 * n * 4);
  const auto from = buffer.tensor(DType::f32, {n});
  const auto to = buffer.tensor(DType::f32, {n}, n * 4);
  const auto copy_once = [&] {
    ops::copy(stream, to, from);
    stream.record().wait();
  };
  copy_once();
  world.barrier();
  Windows rates;
  for (int w = 0; w < windows; ++w) {
    const auto start = std::chrono::steady_clock::now();
    double bytes = 0;
    do {
      copy_once();
      bytes += 8.0 * static_cast<double>(n);
    } while (seconds_since(start) < window_seconds);
    rates.push_back(bytes / seconds_since(start));
  }
  return rates;
}

using Pairs = std::vector<std::pair<int, int>>;

/// Returns the member with whom `rank` exchanges; CollectiveCall::none: nobody.
int peer_of(int rank, const Pairs& pairs) {
  for (const auto& [a, b] : pairs)
    if (a == rank || b == rank) return a == rank ? b : a;
  return comm::CollectiveCall::none;
}

/// Buffers for exchanges along an axis.
struct ExchangeBuffers {
  device::Buffer sent;
  device::Buffer received;
};

/// Exchanges data with a neighbor; returns bytes per second in each direction, 0 without a peer. A
/// window has several exchanges on fast links. Collective over the world.
Windows exchange_rates(const comm::Communicator& world, comm::Collectives& axis,
                       const ExchangeBuffers& buffers, int peer) {
  const bool alone = peer == comm::CollectiveCall::none;
  const std::int64_t n = alone ? 0 : buffers.sent.bytes() / 4;
  const auto seconds_for = [&](std::int64_t exchanges) {
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < exchanges; ++i)
      axis.send_recv(buffers.received.tensor(DType::f32, {n}), peer,
                     buffers.sent.tensor(DType::f32, {n}), peer, {})
          .wait();
    return seconds_since(start);
  };
  seconds_for(1);  // makes the connection
  const auto nanoseconds = world.max(static_cast<std::int64_t>(1e9 * seconds_for(1)));
  const auto exchanges =
      std::clamp<std::int64_t>(2'000'000 / std::max<std::int64_t>(nanoseconds, 1), 1, 32);
  seconds_for(1);  // lets both ends start together
  Windows rates;
  for (int w = 0; w < windows; ++w)
    rates.push_back(4 * static_cast<double>(n * exchanges) / seconds_for(exchanges));
  return rates;
}

/// Measures all neighbors along an axis. Collective over the world.
std::vector<LinkRate> axis_links(const Subject& at, comm::DeviceMesh::Axis& axis) {
  auto& collectives = *axis.collectives;
  const std::int64_t bytes = std::int64_t{collectives.stream().on_gpu() ? 64 : 1} << 20;
  ExchangeBuffers buffers{collectives.allocate_symmetric(bytes), device::Buffer(bytes)};
  const auto& mesh = at.setup.mesh;
  const auto along = mesh.named({axis.name});
  std::vector<LinkRate> links;
  for (const auto& pairs : ring_phases(axis.size)) {
    at.world.barrier();
    const auto rates =
        gather(at.world, exchange_rates(at.world, collectives, buffers, peer_of(axis.rank, pairs)));
    for (int rank = 0; rank < at.world.size(); ++rank) {
      const int index = mesh.rank_in_group(along, rank);
      const auto pair = std::ranges::find(pairs, index, &std::pair<int, int>::first);
      if (pair == pairs.end()) continue;
      const auto second = static_cast<std::size_t>(pair->second);
      links.push_back({axis.name, rank, mesh.group(along, rank)[second],
                       rates[static_cast<std::size_t>(rank)]});
    }
  }
  collectives.free_symmetric(std::move(buffers.sent));
  return links;
}

std::vector<LinkRate> measure_links(const Subject& at, comm::DeviceMesh& mesh) {
  std::vector<LinkRate> links;
  for (auto& axis : mesh.axes())
    if (axis.size > 1) std::ranges::move(axis_links(at, axis), std::back_inserter(links));
  return links;
}

std::string link_text(const SlowLink& slow, const Subject& at) {
  const auto& [axis, first, second, rates] = slow.link;
  return fmt::format("link {} <-> {} (ranks {} and {}, {}): {}",
                     at.host_of(static_cast<std::size_t>(first)),
                     at.host_of(static_cast<std::size_t>(second)), first, second, axis,
                     comparison(slow.best, slow.median, gigabytes));
}

}  // namespace

Finding check_compute(const Subject& at) {
  const auto dtype = at.setup.inputs.precision.parameters;
  const double share = share_of_quota();
  return compare_ranks(at, "compute", gigaflops, [&] {
    auto rates = ops::measured_gemm_rates(dtype, [&] { at.world.barrier(); });
    for (double& rate : rates) rate *= share;
    return rates;
  });
}

Finding check_memory(const Subject& at) {
  return compare_ranks(at, "memory", gigabytes, [&] { return memory_rates(at.world); });
}

Finding check_links(const Subject& at, comm::DeviceMesh& mesh) {
  const auto links = measure_links(at, mesh);
  const auto slow = found_each_time<SlowLink>(
      slow_links(links, at.hosts), [&] { return slow_links(measure_links(at, mesh), at.hosts); },
      [](const SlowLink& a, const SlowLink& b) {
        return a.link.axis == b.link.axis && a.link.first == b.link.first &&
               a.link.second == b.link.second;
      });
  Finding finding{"links", "", {}};
  for (const auto& axis : mesh.axes()) {
    double slowest = 0;
    for (const auto& link : links)
      if (const double rate = median(link.windows);
          link.axis == axis.name && (slowest == 0 || rate < slowest))
        slowest = rate;
    finding.text +=
        fmt::format("{}{}={} {}", finding.text.empty() ? "" : ", ", axis.name, axis.size,
                    axis.size == 1 ? "alone" : "at least " + rate_text(slowest, gigabytes));
  }
  const auto blame = blame_for_links(slow, at.hosts);
  for (const auto& [host, its_links] : blame.hosts)
    finding.bad.emplace(
        host,
        link_text(its_links.front(), at) +
            (its_links.size() == 1 ? "" : fmt::format(", and {} more", its_links.size() - 1)));
  for (const auto& pair : blame.pairs)
    finding.warnings.push_back(link_text(pair, at) + "; it is unclear which end is slow");
  return finding;
}

Finding check_gpus(const Subject& at) {
  Finding finding{"gpus", "", {}};
  const auto gpu = device::gpu_health(device::identity()).value_or(device::GpuHealth());
  const auto errors = gpu.uncorrected_errors.value_or(0);
  collect(finding, at, errors == 0 ? "" : fmt::format("{} uncorrected ECC errors", errors));
  const auto links = at.world.all_gather(std::int64_t{gpu.nvlinks.value_or(-1)});
  const double usual = median({links.begin(), links.end()});
  for (std::size_t r = 0; r < links.size(); ++r)
    if (static_cast<double>(links[r]) < usual)
      finding.bad.emplace(
          at.host_of(r),
          fmt::format("rank {}: {} active NVLinks, others have {:.0f}", r, links[r], usual));
  // Only a warning: a GPU that is throttled enough to matter is slow in the other checks.
  const auto held_down = at.world.all_gather(std::int64_t{gpu.clocks_held_down ? 1 : 0});
  for (std::size_t r = 0; r < held_down.size(); ++r)
    if (held_down[r] != 0)
      finding.warnings.push_back(fmt::format(
          "rank {} on {}: clocks are throttled (hardware, heat or power)", r, at.host_of(r)));
  finding.text = fmt::format("{} active NVLinks each, by NVML", usual);
  return finding;
}

std::vector<Finding> rate_findings(const Subject& at, comm::DeviceMesh& mesh) {
  // GPUs last: throttling shows while they are busy or just after.
  std::vector<Finding> findings{check_compute(at), check_memory(at), check_links(at, mesh)};
  if (device::kind() == device::Kind::cuda) findings.push_back(check_gpus(at));
  return findings;
}

}  // namespace llamesh::train
