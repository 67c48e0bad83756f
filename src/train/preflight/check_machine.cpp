#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "comm/mpi/session.hpp"
#include "core/hash.hpp"
#include "core/process.hpp"
#include "data/mapped_file.hpp"
#include "train/preflight/checks.hpp"

namespace llamesh::train {
namespace {

constexpr double largest_clock_skew = 2;  // seconds; make and a run folder's lease need better

}  // namespace

Finding check_build(const Subject& at, const std::string& build) {
  // Hash the executable too: a node may have an old copy of the same version.
  const data::MappedFile program("/proc/self/exe");
  const auto hash = hash_of(program.bytes().data(), program.bytes().size());
  const auto name = build.substr(0, build.find('\n'));
  Finding finding{
      "build", fmt::format("{}, program file {:016x}, the same everywhere", name, hash), {}};
  const auto texts = at.world.all_gather(fmt::format("{}, program file {:016x}", build, hash));
  for (const int rank : outliers(texts)) {
    const auto r = static_cast<std::size_t>(rank);
    std::string odd = texts[r];
    std::ranges::replace(odd, '\n', ',');
    finding.bad.emplace(at.host_of(r), "runs another build: " + odd);
  }
  if (!finding.bad.empty()) finding.text = "differs between the nodes";
  return finding;
}

Finding check_launch(const Subject& at) {
  return {
      "launch",
      comm::on_rank_0(
          at.world,
          [] {
            auto text = comm::mpi_version();
            if (output_of({"sh", "-c", "command -v srun"}).empty()) return text;
            const auto plugin = comm::srun_plugin();
            return plugin.empty()
                       ? text + "; srun --mpi=list has no plugin for it: start ranks by its mpirun"
                       : fmt::format("{}; under Slurm, start ranks by srun --mpi={}", text, plugin);
          }),
      {}};
}

Finding check_clocks(const Subject& at) {
  // A rank may get no processor for seconds before it reads its clock. So its clock is off only if
  // it is outside the times that the median clock shows before and after all ranks have read
  // theirs.
  const auto clocks_now = [&] {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const auto mine = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
    return at.world.all_gather(std::int64_t{mine});
  };
  const auto median = [](std::vector<std::int64_t> clocks) {
    std::ranges::sort(clocks);
    return clocks[clocks.size() / 2];
  };
  const auto earliest = median(clocks_now());
  const auto clocks = clocks_now();
  const auto latest = median(clocks_now());
  const auto [first, last] = std::ranges::minmax(clocks);
  Finding finding{
      "clocks", fmt::format("within {:.1f} ms", 1e-3 * static_cast<double>(last - first)), {}};
  for (std::size_t r = 0; r < clocks.size(); ++r) {
    const auto nearest = std::clamp(clocks[r], earliest, std::max(earliest, latest));
    const double skew = 1e-6 * static_cast<double>(clocks[r] - nearest);
    if (std::abs(skew) > largest_clock_skew)
      finding.bad.emplace(at.host_of(r), fmt::format("its clock is {:+.1f} s off", skew));
  }
  return finding;
}

}  // namespace llamesh::train
