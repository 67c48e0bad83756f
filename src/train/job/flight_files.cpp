#include "train/job/flight_files.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/file.hpp"
#include "core/hash.hpp"
#include "core/philox.hpp"
#include "core/process.hpp"
#include "core/trace.hpp"

namespace llamesh::train {
namespace {

namespace fs = std::filesystem;
using comm::FlightSnapshot;

/// The record to copy, and its destination.
struct Kept {
  std::mutex mutex;
  fs::path own;
  fs::path to;
};

Kept& kept() {
  static Kept of_this_process;
  return of_this_process;
}

std::string file_name(int rank) {
  return fmt::format("rank-{:05}", rank);
}

/// Returns the prefix for all of this run's records on a node; each user has a different one.
std::string prefix_of(const fs::path& run_folder) {
  std::error_code ignored;
  return fmt::format("llamesh-flight-{}-{}-", geteuid(),
                     to_hex(name_hash(fs::weakly_canonical(run_folder, ignored).string())));
}

std::vector<fs::path> files_in(const fs::path& folder, const std::string& prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (at->path().filename().string().starts_with(prefix)) found.push_back(at->path());
  return found;
}

/// Reads a record; null if it is not one, or not this user's: anybody may write to /dev/shm.
/// Records are larger than the stack may be (ulimit -s).
std::unique_ptr<FlightSnapshot> read_snapshot(const fs::path& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid() ||
      status.st_size != static_cast<off_t>(sizeof(FlightSnapshot)))
    return nullptr;
  auto snapshot = std::make_unique<FlightSnapshot>();
  Descriptor::to_read(path).read(0, snapshot.get(), sizeof(FlightSnapshot));
  if (snapshot->layout != FlightSnapshot::known_layout || snapshot->rank < 0 ||
      snapshot->world_size <= snapshot->rank || snapshot->world_size > 10'000'000)
    return nullptr;
  snapshot->host.back() = snapshot->next_host.back() = '\0';
  snapshot->end.kind.back() = snapshot->end.host.back() = snapshot->end.detail.back() = '\0';
  for (auto& record : snapshot->records)
    record.axis.back() = record.kind.back() = record.subject.back() = record.dtype.back() = '\0';
  return snapshot;
}

void write_snapshot(const fs::path& path, const FlightSnapshot& snapshot) {
  Descriptor::to_write(path, O_WRONLY | O_CREAT | O_TRUNC).write(0, &snapshot, sizeof(snapshot));
}

/// Moves records left on this node by earlier launches into the run folder.
void collect(const fs::path& run_folder) {
  for (const auto& path : files_in("/dev/shm", prefix_of(run_folder))) {
    if (const auto snapshot = read_snapshot(path)) {
      make_folder(flight_folder(run_folder));
      const auto to = flight_folder(run_folder) / file_name(snapshot->rank);
      const auto there = read_snapshot(to);
      if (!there || there->job <= snapshot->job) write_snapshot(to, *snapshot);
    }
    std::error_code ignored;
    fs::remove(path, ignored);
  }
}

void quietly(const char* doing, const std::function<void()>& work) noexcept {
  try {
    work();
  } catch (const std::exception& error) {
    spdlog::warn("{}: {}", doing, error.what());
  }
}

}  // namespace

fs::path flight_folder(const fs::path& run_folder) {
  return run_folder / "flight";
}

FlightFiles::FlightFiles(const comm::Communicator& world, const comm::Topology& topology,
                         const fs::path& run_folder) {
  const auto rank = static_cast<std::size_t>(world.rank());
  if (topology.local_rank_of[rank] == 0)
    quietly("flight records of an earlier launch", [&] { collect(run_folder); });
  // Also a barrier: collect all old records before new ones take their names.
  const auto job = world.max(Trace::now(), "when the start began");
  own_ = fs::path("/dev/shm") / (prefix_of(run_folder) + file_name(world.rank()));
  const auto next = (rank + 1) % topology.host_of.size();
  if (!comm::FlightRecorder::instance().keep_in(own_, {.rank = world.rank(),
                                                       .world_size = world.size(),
                                                       .job = job,
                                                       .host = this_process().host,
                                                       .next_host = topology.host_of[next]})) {
    spdlog::warn("no flight record: {} cannot be written", own_.string());
    own_.clear();
    return;
  }
  const std::lock_guard lock(kept().mutex);
  kept().own = own_;
  kept().to = flight_folder(run_folder) / file_name(world.rank());
}

FlightFiles::~FlightFiles() {
  if (own_.empty()) return;
  const bool failed = std::uncaught_exceptions() > 0;
  if (failed) dump();
  comm::FlightRecorder::instance().release();
  std::error_code ignored;
  if (!failed) fs::remove(own_, ignored);
  const std::lock_guard lock(kept().mutex);
  kept().own.clear();
}

void FlightFiles::dump() noexcept {
  quietly("a flight record", [] {
    const std::lock_guard lock(kept().mutex);
    if (kept().own.empty()) return;
    const auto snapshot = read_snapshot(kept().own);
    const auto folder = kept().to.parent_path();
    // Does not make a run folder again that was removed or renamed.
    if (!snapshot || !fs::is_directory(folder.parent_path())) return;
    make_folder(folder);
    write_snapshot(kept().to, *snapshot);
    std::error_code ignored;
    fs::remove(kept().own, ignored);  // the process ends
  });
}

std::optional<Failure> read_failure(const fs::path& run_folder) {
  std::vector<FlightSnapshot> snapshots;
  for (const auto& path : files_in(flight_folder(run_folder), "rank-"))
    quietly("a flight record", [&] {
      if (const auto snapshot = read_snapshot(path)) snapshots.push_back(*snapshot);
    });
  return failure_of_records(snapshots);
}

void put_records_aside(const fs::path& run_folder) {
  const auto records = flight_folder(run_folder);
  const auto aside = run_folder / "flight.1";
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(records, ignored))) return;
  fs::remove_all(aside, ignored);
  fs::rename(records, aside, ignored);
}

}  // namespace llamesh::train
