#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <set>
#include <string>

#include "checkpoint/memory/memory_room.hpp"
#include "checkpoint/store/store_folder.hpp"
#include "core/file.hpp"
#include "train/job/shared_folder.hpp"
#include "train/preflight/checks.hpp"

namespace llamesh::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr double checkpoints_to_hold = 2.5;  // the previous one, the new one, and some for the rest
constexpr std::int64_t probe_bytes = 8 << 20;

double mebibytes(std::int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

/// Writes and syncs a file with 8 MiB; returns bytes per second.
double durable_write_rate(const fs::path& path) {
  const std::string bytes(probe_bytes, 'x');
  const auto start = Clock::now();
  {
    auto file = Descriptor::to_write(path, O_WRONLY | O_CREAT | O_TRUNC);
    file.append(bytes);
    file.sync();
  }
  const double seconds = seconds_since(start);
  unlink(path.c_str());
  return static_cast<double>(probe_bytes) / seconds;
}

}  // namespace

Finding check_folder(const Subject& at, const fs::path& folder) {
  Finding finding{"run folder", "", {}};
  auto trouble = shared_folder_problem(at.world, at.first_on_host, folder);
  double rate = 0;
  const auto probe = folder / fmt::format(".preflight.{}", at.world.rank());
  if (at.first_on_host && !trouble) {
    try {
      rate = durable_write_rate(probe);
    } catch (const Error& error) {
      trouble = error;
      unlink(probe.c_str());
    }
  }
  collect(finding, at, trouble ? trouble->what() : "");
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
  const auto needed = static_cast<std::int64_t>(checkpoints_to_hold * 12 *
                                                static_cast<double>(at.setup.table->numel()));
  std::int64_t available = 0;
  comm::agree(at.world, [&] {
    if (at.world.rank() != 0) return;
    std::error_code error;
    const auto space = fs::space(folder, error);
    // A run begins by removing leftovers from killed saves.
    const auto freed = checkpoint::partial_checkpoint_bytes(folder / "checkpoints");
    available = error ? 0 : static_cast<std::int64_t>(space.available) + freed;
    if (available < needed)
      fail(ExitCode::io_failure,
           "{} has {} bytes free, but {} checkpoints need {}; make room or choose another "
           "run.folder",
           folder.string(), available, checkpoints_to_hold, needed);
  });
  return {"room",
          fmt::format("{:.0f} MiB free, {} checkpoints need {:.1f} MiB", mebibytes(available),
                      checkpoints_to_hold, mebibytes(needed)),
          {}};
}

Finding check_memory_checkpoints(const Subject& at) {
  const auto planned = at.setup.plan_memory(at.setup, at.world.rank(), /*threads=*/1);
  const auto needed = at.world.all_gather(planned.memory_checkpoints);
  const auto rooms =
      at.world.all_gather(checkpoint::room_for_snapshots(at.setup.inputs.run.folder));
  std::size_t tightest = 0;
  for (std::size_t r = 1; r < needed.size(); ++r)
    if (rooms[r] - needed[r] < rooms[tightest] - needed[tightest]) tightest = r;
  return {"node memory",
          fmt::format("memory checkpoints take {:.1f} MiB of {:.0f} MiB in /dev/shm on {}{}",
                      mebibytes(needed[tightest]), mebibytes(rooms[tightest]), at.host_of(tightest),
                      at.setup.topology.nodes > 1 ? ", the tightest" : ""),
          {}};
}

}  // namespace llamesh::train
