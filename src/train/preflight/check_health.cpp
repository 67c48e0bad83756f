#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "checkpoint/store/lease.hpp"
#include "core/file.hpp"
#include "train/preflight/checks.hpp"
#include "train/records/failure.hpp"
#include "train/records/run_state.hpp"

namespace llamesh::train {
namespace {

/// Returns the number of spare nodes from rank 0's environment; -1: this launch is not checked.
int spare_nodes(const comm::Communicator& world) {
  const auto text = comm::on_rank_0(world, []() -> std::string {
    const char* value = std::getenv("LLAMESH_SPARE_NODES");
    return value == nullptr ? "" : value;
  });
  int spares = -1;
  std::from_chars(text.data(), text.data() + text.size(), spares);
  return spares;
}

/// Records hosts that are left out. Does not use record_failure(), which keeps an earlier launch's
/// diagnosis from the last few seconds.
void record_slow_hosts(const Subject& at, const std::map<std::string, std::string>& hosts,
                       const std::string& line) {
  const std::filesystem::path folder = at.setup.inputs.run.folder;
  auto state = read_run_state(folder).value_or(RunState{});
  state.phase = RunPhase::stopped;
  state.exit_code = ExitCode::stopped_early;
  state.reason = line;
  state.doing = "measuring the nodes";
  state.faulty_ranks.clear();
  state.faulty_hosts.clear();
  for (const auto& [host, why] : hosts) {
    const auto rank = std::ranges::find(at.hosts, host) - at.hosts.begin();
    state.faulty_ranks.push_back(static_cast<int>(rank));
    state.faulty_hosts.push_back(host);
  }
  write_run_state(folder, state);
  write_failure(folder, {.kind = "slow",
                         .rank = state.faulty_ranks.front(),
                         .host = state.faulty_hosts.front(),
                         .phase = "starting",
                         .detail = line});
}

}  // namespace

std::vector<std::string> check_health(const comm::Communicator& world, const Setup& setup) {
  const int spares = spare_nodes(world);
  if (spares < 0) return {};
  set_threads(setup.inputs.train.threads, world);
  const Subject at = subject_of(world, setup);
  std::map<std::string, std::string> bad;
  std::vector<std::string> lines;
  comm::DeviceMesh mesh(world, setup.topology, setup.mesh);  // NCCL's buffers go with it
  for (const auto& finding : rate_findings(at, mesh)) {
    for (const auto& [host, why] : finding.bad)
      bad.emplace(host, fmt::format("{} on {}: {}", finding.name, host, why));
    for (const auto& warning : finding.warnings)
      lines.push_back(fmt::format("{}: {}", finding.name, warning));
  }
  std::vector<std::string> problems;
  for (const auto& [host, why] : bad) problems.push_back(why);
  const bool leaves_out = !bad.empty() && std::ssize(bad) <= spares;
  if (!leaves_out) {
    std::ranges::copy(problems, std::back_inserter(lines));
    return lines;
  }
  comm::agree(world, [&] {
    if (world.rank() != 0) return;
    // Refuses a folder that another job has: its state.json is not ours to write.
    const auto checkpoints = std::filesystem::path(setup.inputs.run.folder) / "checkpoints";
    make_folder(checkpoints);
    const checkpoint::Lease lease(checkpoints);
    const auto line = fmt::format("{}", fmt::join(problems, "; "));
    record_slow_hosts(at, bad, line);
    fail(ExitCode::stopped_early, "{}: replaced by a spare node", line);
  });
  return {};
}

}  // namespace llamesh::train
