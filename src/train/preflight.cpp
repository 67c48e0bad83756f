#include "train/preflight.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>
#include <thread>

#include "comm/device_mesh.hpp"
#include "core/hash.hpp"
#include "data/mapped_file.hpp"
#include "device/buffer.hpp"
#include "device/device.hpp"
#include "ops/gemm_rate.hpp"
#include "train/threads.hpp"

namespace llamesh::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr double largest_clock_skew = 2;  // seconds: make and the lease of a run folder bear less
constexpr double checkpoints_to_hold = 2.5;  // the one before, the new one, and some for the rest
constexpr std::int64_t probe_bytes = 8 << 20;
constexpr std::chrono::seconds metadata_delay{10};  // until a shared folder shows a new file

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// What the checks look at.
struct Subject {
  const comm::Communicator& world;
  const Setup& setup;
  const std::vector<std::string>& hosts;  // by rank
  bool first_on_host;

  const std::string& host_of(std::size_t rank) const { return hosts[rank]; }
};

/// Every rank's own trouble (empty: none), collected under the hosts.
void collect(Finding& finding, const Subject& at, const std::string& trouble) {
  const auto all = at.world.all_gather(trouble);
  for (std::size_t r = 0; r < all.size(); ++r)
    if (!all[r].empty()) finding.bad.emplace(at.host_of(r), all[r]);
}

Finding check_build(const Subject& at, const std::string& build) {
  // Also of the file, since a node may have kept an old copy of the same version.
  const data::MappedFile program("/proc/self/exe");
  const auto hash = hash_of(program.bytes().data(), program.bytes().size());
  const auto name = build.substr(0, build.find('\n'));
  Finding finding{
      "build", fmt::format("{}, program file {:016x}, the same everywhere", name, hash), {}};
  const auto texts = at.world.all_gather(fmt::format("{}, program file {:016x}", build, hash));
  for (const int rank : odd_ones_out(texts)) {
    const auto r = static_cast<std::size_t>(rank);
    std::string odd = texts[r];
    std::ranges::replace(odd, '\n', ',');
    finding.bad.emplace(at.host_of(r), "runs another build: " + odd);
  }
  if (!finding.bad.empty()) finding.text = "differs between the nodes";
  return finding;
}

/// Whole numbers, so that every order of summation gives the same fp32.
float value_of(int rank, std::int64_t i) {
  return static_cast<float>(rank + 1) * static_cast<float>(i % 997);
}

/// number(i) for all i, on the device.
template <class Number>
void fill(const Tensor& tensor, const Number& number) {
  std::vector<float> numbers(static_cast<std::size_t>(tensor.numel()));
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = number(static_cast<std::int64_t>(i));
  device::upload(device::compute_stream(), tensor, numbers.data());
}

/// The first i at which the tensor does not hold number(i), or -1.
template <class Number>
std::int64_t first_wrong(const Tensor& tensor, const device::Event& after, const Number& number) {
  after.wait();
  std::vector<float> numbers(static_cast<std::size_t>(tensor.numel()));
  device::download(device::compute_stream(), numbers.data(), tensor);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    if (numbers[i] != number(static_cast<std::int64_t>(i))) return static_cast<std::int64_t>(i);
  return -1;
}

/// Runs each collective of an axis on known numbers; says what came out wrong on this rank.
std::string wrong_answers(comm::Collectives& axis, std::int64_t n) {
  auto gathered = axis.allocate_gathered(n * 4);
  auto symmetric = axis.allocate_symmetric(n * 4 * axis.size());
  device::Buffer part(n * 4);
  const auto whole = gathered.tensor(DType::f32, {n * axis.size()});
  const auto parts = symmetric.tensor(DType::f32, {n * axis.size()});
  const auto mine = part.tensor(DType::f32, {n});
  const auto own = [&](std::int64_t i) { return value_of(axis.rank(), i); };
  const auto factor = static_cast<float>(axis.size() * (axis.size() + 1) / 2);
  const auto summed = [&](std::int64_t i) { return factor * value_of(0, i); };

  fill(mine, own);
  auto wrong = first_wrong(whole, axis.all_gather(whole, mine, {}), [&](std::int64_t i) {
    return value_of(static_cast<int>(i / n), i % n);
  });
  if (wrong >= 0)
    return fmt::format("all-gather: number {} from rank {} of the axis is wrong", wrong % n,
                       wrong / n);
  fill(parts, own);
  wrong = first_wrong(mine, axis.reduce_scatter(mine, parts, Accumulate::no, {}),
                      [&](std::int64_t i) { return summed(axis.rank() * n + i); });
  if (wrong >= 0) return fmt::format("reduce-scatter: number {} is wrong", wrong);
  fill(parts, own);
  wrong = first_wrong(parts, axis.all_reduce(parts, {}), summed);
  if (wrong >= 0) return fmt::format("all-reduce: number {} is wrong", wrong);
  return {};
}

Finding check_collectives(const Subject& at) {
  Finding finding{"collectives", "", {}};
  comm::DeviceMesh mesh(at.world, at.setup.topology, at.setup.mesh);
  for (const auto& [name, size] : at.setup.mesh) {
    constexpr std::int64_t n = 1 << 18;
    const auto wrong = wrong_answers(*mesh.axis(name).collectives, n);
    at.world.barrier();
    const auto start = Clock::now();
    const auto again = wrong_answers(*mesh.axis(name).collectives, n);
    const auto microseconds = at.world.max(static_cast<std::int64_t>(1e6 * seconds_since(start)));
    collect(finding, at, wrong.empty() ? again : fmt::format("axis {}: {}", name, wrong));
    finding.text += fmt::format(
        "{}{}={} {}", finding.text.empty() ? "" : ", ", name, size,
        size == 1 ? "alone"
                  : fmt::format("right in {:.1f} ms", 1e-3 * static_cast<double>(microseconds)));
  }
  if (!finding.bad.empty()) finding.text = "give wrong answers";
  return finding;
}

Finding check_compute(const Subject& at) {
  set_threads(at.setup.inputs.train.threads, at.world);
  at.world.barrier();
  const auto rate = ops::measured_gemm_rate(at.setup.inputs.precision.parameters);
  auto rates = at.world.all_gather(static_cast<std::int64_t>(rate));
  const auto slowest = std::ranges::min_element(rates);
  const auto r = static_cast<std::size_t>(slowest - rates.begin());
  const double least = static_cast<double>(*slowest);
  std::ranges::sort(rates);
  return {"compute",
          fmt::format("median {:.0f} GFLOP/s a rank, slowest {:.0f} (rank {} on {})",
                      1e-9 * static_cast<double>(rates[rates.size() / 2]), 1e-9 * least, r,
                      at.host_of(r)),
          {}};
}

/// A file of 8 MiB written and synced: bytes a second, or what went wrong in `trouble`.
double durable_write_rate(const fs::path& file, std::string& trouble) {
  const std::vector<char> bytes(probe_bytes, 'x');
  const auto start = Clock::now();
  const int descriptor = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
  bool good = descriptor >= 0;
  for (std::size_t done = 0; good && done < bytes.size();) {
    const auto n = write(descriptor, bytes.data() + done, bytes.size() - done);
    good = n > 0;
    if (good) done += static_cast<std::size_t>(n);
  }
  good = good && fsync(descriptor) == 0;
  if (!good) trouble = fmt::format("{}: {}", file.string(), std::strerror(errno));
  if (descriptor >= 0) close(descriptor);
  unlink(file.c_str());
  return static_cast<double>(probe_bytes) / seconds_since(start);
}

bool comes_to_be_seen(const fs::path& file) {
  std::error_code ignored;
  for (const auto start = Clock::now(); Clock::now() - start < metadata_delay;
       std::this_thread::sleep_for(std::chrono::milliseconds(50)))
    if (fs::exists(file, ignored)) return true;
  return false;
}

/// The folder and those above it that were not there, made for a while.
class BorrowedFolder {
 public:
  explicit BorrowedFolder(const fs::path& folder) {
    for (auto at = fs::absolute(folder); !fs::exists(at); at = at.parent_path())
      made_.push_back(at);
    std::error_code error;
    fs::create_directories(folder, error);
    if (error)
      fail(ExitCode::io_failure, "cannot make the folder {}: {}", folder.string(), error.message());
  }
  ~BorrowedFolder() {
    std::error_code ignored;
    for (const auto& folder : made_) fs::remove(folder, ignored);  // only when it is empty
  }
  BorrowedFolder(const BorrowedFolder&) = delete;
  BorrowedFolder& operator=(const BorrowedFolder&) = delete;

 private:
  std::vector<fs::path> made_;
};

Finding check_folder(const Subject& at, const fs::path& folder) {
  Finding finding{"run folder", "", {}};
  const auto token = folder / ".preflight";
  std::string trouble;
  if (at.world.rank() == 0) durable_write_rate(folder / ".preflight.0", trouble);
  if (at.world.rank() == 0 && trouble.empty())
    if (const int made = open(token.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0640); made >= 0)
      close(made);
  // Where rank 0 cannot write, nobody is to be blamed for not seeing it.
  const bool to_be_seen = at.world.broadcast(trouble).empty();
  double rate = 0;
  if (at.first_on_host && trouble.empty()) {
    if (!to_be_seen || comes_to_be_seen(token))
      rate = durable_write_rate(folder / fmt::format(".preflight.{}", at.world.rank()), trouble);
    else
      trouble =
          fmt::format("does not see the {} that rank 0 sees: is the file system mounted there?",
                      folder.string());
  }
  collect(finding, at, trouble);
  if (at.world.rank() == 0) unlink(token.c_str());
  const auto rates = at.world.all_gather(static_cast<std::int64_t>(rate));
  const std::set<std::string> hosts(at.hosts.begin(), at.hosts.end());
  std::int64_t slowest = 0;
  for (const auto one : rates)
    if (one > 0 && (slowest == 0 || one < slowest)) slowest = one;
  finding.text = fmt::format("{} written durably from {} of {} hosts, {:.0f} MB/s on the slowest",
                             folder.string(), hosts.size() - finding.bad.size(), hosts.size(),
                             1e-6 * static_cast<double>(slowest));
  return finding;
}

Finding check_room(const Subject& at, const fs::path& folder) {
  const double needed = checkpoints_to_hold * 12 * static_cast<double>(at.setup.table->numel());
  std::error_code error;
  const auto space = fs::space(folder, error);
  const auto available = error ? 0.0 : static_cast<double>(space.available);
  comm::agree(at.world, [&] {
    if (at.world.rank() == 0 && available < needed)
      fail(
          ExitCode::io_failure,
          "{} has {:.1f} MiB free, but {} checkpoints need {:.1f} MiB; make room or choose another "
          "run.folder",
          folder.string(), available / (1 << 20), checkpoints_to_hold, needed / (1 << 20));
  });
  return {"room",
          fmt::format("{:.0f} MiB free, {} checkpoints need {:.1f} MiB", available / (1 << 20),
                      checkpoints_to_hold, needed / (1 << 20)),
          {}};
}

Finding check_clocks(const Subject& at) {
  at.world.barrier();
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto mine = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  auto clocks = at.world.all_gather(std::int64_t{mine});
  auto sorted = clocks;
  std::ranges::sort(sorted);
  const auto median = sorted[sorted.size() / 2];
  Finding finding{
      "clocks",
      fmt::format("within {:.1f} ms", 1e-3 * static_cast<double>(sorted.back() - sorted.front())),
      {}};
  for (std::size_t r = 0; r < clocks.size(); ++r) {
    const double skew = 1e-6 * static_cast<double>(clocks[r] - median);
    if (std::abs(skew) > largest_clock_skew)
      finding.bad.emplace(at.host_of(r), fmt::format("its clock is {:+.1f} s off", skew));
  }
  return finding;
}

}  // namespace

std::vector<int> odd_ones_out(const std::vector<std::string>& texts) {
  const auto frequency = [&](const std::string& text) { return std::ranges::count(texts, text); };
  const auto usual = std::ranges::max_element(texts, {}, frequency);  // the first of equals
  std::vector<int> odd;
  for (std::size_t r = 0; r < texts.size(); ++r)
    if (texts[r] != *usual) odd.push_back(static_cast<int>(r));
  return odd;
}

std::string verdict(const std::vector<Finding>& findings) {
  std::set<std::string> hosts;
  std::string lines;
  for (const auto& finding : findings)
    for (const auto& [host, why] : finding.bad) {
      hosts.insert(host);
      lines += fmt::format("  {} on {}: {}\n", finding.name, host, why);
    }
  if (hosts.empty()) return "All is in order.\n";
  return fmt::format("{} bad; leave {} out: sbatch --exclude={}\n{}",
                     hosts.size() == 1 ? "A node is" : "Nodes are",
                     hosts.size() == 1 ? "it" : "them", fmt::join(hosts, ","), lines);
}

ExitCode preflight(const comm::Communicator& world, const Setup& setup, const std::string& build) {
  const auto& hosts = setup.topology.host_of;
  const auto own = std::ranges::find(hosts, hosts[static_cast<std::size_t>(world.rank())]);
  const Subject at{world, setup, hosts, own - hosts.begin() == world.rank()};
  const fs::path folder = setup.inputs.run.folder;

  std::vector<Finding> findings;
  findings.push_back(check_build(at, build));
  findings.push_back({"mesh",
                      fmt::format("{}, {}, ranks: {}, hosts: {}", comm::to_string(setup.mesh),
                                  sharding::name_of(setup.inputs.sharding.strategy), world.size(),
                                  std::set<std::string>(hosts.begin(), hosts.end()).size()),
                      {}});
  findings.push_back(check_collectives(at));
  findings.push_back(check_compute(at));
  {
    std::unique_ptr<BorrowedFolder> borrowed;
    comm::agree(world, [&] {
      if (world.rank() == 0) borrowed = std::make_unique<BorrowedFolder>(folder);
    });
    findings.push_back(check_folder(at, folder));
    findings.push_back(check_room(at, folder));
    world.barrier();
  }
  findings.push_back(check_clocks(at));

  if (world.rank() == 0) {
    for (const auto& finding : findings) fmt::print("{:<12} {}\n", finding.name, finding.text);
    fmt::print("{}", verdict(findings));
  }
  const bool all_good = std::ranges::all_of(findings, [](const auto& f) { return f.bad.empty(); });
  return all_good ? ExitCode::done : ExitCode::stopped_early;
}

}  // namespace llamesh::train
