#include "checkpoint/store.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <ranges>

#include "checkpoint/h5.hpp"
#include "checkpoint/location.hpp"
#include "comm/session.hpp"
#include "core/error.hpp"
#include "core/file.hpp"

namespace llamesh::checkpoint {
namespace {

namespace fs = std::filesystem;

/// The step of a committed checkpoint's name, or -1.
std::int64_t step_of(const fs::path& path) {
  const auto name = path.filename().string();
  if (!name.starts_with("step_") || name.size() < 13 || name.size() > 23) return -1;
  const auto digits = name.substr(5);
  if (!std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; })) return -1;
  return std::stoll(digits);
}

/// A name beside `path` that is free: path.aside-1, -2, ...
fs::path aside(const fs::path& path) {
  std::error_code error;
  for (int i = 1;; ++i) {
    auto name = path;
    name += fmt::format(".aside-{}", i);
    if (!fs::exists(fs::symlink_status(name, error))) return name;
  }
}

/// The step of a checkpoint that was moved aside; -1 for anything else, also for what somebody else
/// has put in the way.
std::int64_t step_of_aside(const fs::path& path) {
  const auto name = path.filename().string();
  const auto at = name.find(".aside-");
  std::error_code error;
  if (at == std::string::npos || !fs::exists(path / "state.h5", error)) return -1;
  return step_of(name.substr(0, at));
}

void move_aside(const fs::path& path, const char* why) {
  const auto to = aside(path);
  rename_path(path, to);
  spdlog::warn("{} {}: moved to {}", path.string(), why, to.filename().string());
}

void remove_quietly(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) spdlog::warn("cannot remove {}: {}", path.string(), error.message());
}

std::vector<fs::path> names_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    found.push_back(at->path());
  if (error && error != std::errc::no_such_file_or_directory)
    fail(ExitCode::io_failure, "cannot list {}: {}", folder.string(), error.message());
  return found;
}

/// A half-removed checkpoint must not look like one, so it loses its name first.
void remove_committed(const fs::path& path) {
  auto doomed = path;
  doomed += ".partial-removed";
  remove_quietly(doomed);
  rename_path(path, doomed);
  remove_quietly(doomed);
}

/// The lease is ours, so every partial checkpoint is a dead job's, or half removed.
void remove_debris(const fs::path& folder) {
  for (const auto& path : names_in(folder)) {
    const auto name = path.filename().string();
    if (name.starts_with("step_") && name.find(".partial-") != std::string::npos)
      remove_quietly(path);
  }
}

}  // namespace

std::string name_of_step(std::int64_t step) {
  return fmt::format("step_{:08}", step);
}

std::vector<fs::path> committed_checkpoints(const fs::path& folder) {
  auto found = names_in(folder);
  std::erase_if(found, [](const fs::path& path) { return step_of(path) < 0; });
  std::ranges::sort(found, std::greater<>(), step_of);
  return found;
}

Store::Store(fs::path folder, const CheckpointOptions& options, const Groups& groups)
    : folder_(std::move(folder)),
      options_(options),
      world_(groups.world.duplicate()),
      replica_{groups.replicate.rank(), groups.replicate.size()} {
  comm::agree(world_, [&] {
    validate(options_.keep >= 1, "checkpoint.keep is {}; at least 1 is kept", options_.keep);
    h5::check_hints(options_.mpi_io_hints);
    if (world_.rank() != 0) return;
    make_folder(folder_);
    lease_ = std::make_unique<Lease>(folder_);
  });
}

Store::~Store() {
  try {
    wait();
  } catch (const comm::Failed&) {  // another rank tells
  } catch (const std::exception& error) {
    spdlog::error("the last checkpoint was not saved: {}", error.what());
  }
}

fs::path Store::save(const State& state, const Progress& progress) {
  wait();
  if (!options_.async) {
    write(state, progress);
  } else {
    thread_ = std::thread([this, held = copy(state), progress] {
      try {
        write(held, progress);
      } catch (...) {
        error_ = std::current_exception();
      }
    });
  }
  return folder_ / name_of_step(progress.step);
}

void Store::wait() {
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

/// The room for copies of the shards. Its pages are written to, since finding them takes longer
/// than copying into them.
void Store::reserve(const State& state) {
  std::int64_t bytes = 0;
  for (const auto& group : state.groups)
    for (const auto& shard : group.shards) bytes += shard.bytes();
  if (copy_.bytes() >= bytes) return;
  copy_ = device::Buffer::on_host(bytes);
  std::memset(copy_.data(), 0, static_cast<std::size_t>(bytes));
}

State Store::copy(const State& state) {
  reserve(state);
  State held{state.layout, state.shard_rank, {}};
  std::int64_t at = 0;
  for (const auto& group : state.groups) {
    held.groups.push_back({group.path, {}});
    for (const auto& shard : group.shards) {
      const auto place = copy_.tensor(DType::f32, {shard.numel()}, at);
      std::memcpy(place.data(), shard.data(), static_cast<std::size_t>(shard.bytes()));
      held.groups.back().shards.push_back(place);
      at += shard.bytes();
    }
  }
  return held;
}

void Store::write(const State& state, const Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  const fs::path partial = comm::on_rank_0(world_, [&] { return prepare(state, progress); });
  Manifest manifest;
  try {
    manifest = write_state(partial / "state.h5", state, progress, world_, replica_, options_);
    comm::agree(world_, [&] {
      if (world_.rank() == 0) commit(partial, manifest);
    });
  } catch (...) {
    if (world_.rank() == 0) remove_quietly(partial);
    throw;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  slowest_save_ = std::max(slowest_save_.load(), seconds.count());
  retire(manifest);
}

/// An empty folder for the new checkpoint, on a disk with room for it.
std::string Store::prepare(const State& state, const Progress& progress) const {
  make_folder(folder_);
  const auto partial =
      folder_ / fmt::format("{}.partial-{}", name_of_step(progress.step), job_name());
  remove_quietly(partial);
  std::int64_t bytes = 0;
  for (const auto& entry : datasets_of(state)) bytes += 4 * entry.numel();
  std::error_code error;
  const auto space = fs::space(folder_, error);
  if (!error && space.available < static_cast<std::uintmax_t>(bytes))
    fail(ExitCode::io_failure,
         "{} has {:.1f} MiB free and a checkpoint needs {:.1f} MiB; make room, or lower "
         "checkpoint.keep",
         folder_.string(), static_cast<double>(space.available) / (1 << 20),
         static_cast<double>(bytes) / (1 << 20));
  make_folder(partial);
  return partial.string();
}

void Store::commit(const fs::path& partial, const Manifest& manifest) const {
  write_durably(partial / "manifest.json", to_text(manifest));
  const auto target = folder_ / name_of_step(manifest.progress.step);
  std::error_code error;
  if (fs::exists(fs::symlink_status(target, error))) {
    const auto to = aside(target);
    if (exchange_paths(partial, target)) {
      rename_path(partial, to);  // it has the old one
    } else {
      rename_path(target, to);
      rename_path(partial, target);
    }
    spdlog::warn("{} was there already: the old one is now {}", target.string(),
                 to.filename().string());
  } else {
    rename_path(partial, target);
  }
  sync_folder(folder_);
}

/// The checkpoint is committed. Verifies it when older ones are to go, and removes them; what fails
/// besides the verification does not take the checkpoint back.
void Store::retire(const Manifest& manifest) const {
  const auto step = manifest.progress.step;
  const auto path = folder_ / name_of_step(step);
  std::vector<fs::path> old;
  const auto quietly = [&](const std::function<void()>& work) {
    try {
      if (world_.rank() == 0) work();
    } catch (const std::exception& failure) {
      spdlog::warn("after the checkpoint of step {}: {}", step, failure.what());
    }
  };
  quietly([&] { old = superseded_by(step); });
  if (comm::on_rank_0(world_, [&] { return std::string(old.empty() ? "" : "some"); }) == "some") {
    try {
      verify_written(path, manifest, world_);
    } catch (const std::exception&) {
      quietly([&] { move_aside(path, "does not read back as it was written"); });
      throw;
    }
  }
  quietly([&] {
    write_durably(folder_ / "LATEST", path.filename().string() + "\n");
    for (const auto& one : old) remove_committed(one);
    remove_debris(folder_);
  });
}

/// What may go once `newest`, which has just been committed, is known to be good: checkpoints that
/// need not be kept, and older ones that lie aside. Later steps are of a past from which this run
/// has branched off (it resumed from an earlier checkpoint, perhaps because they are damaged): they
/// must not be resumed from, and are moved aside.
std::vector<fs::path> Store::superseded_by(std::int64_t newest) const {
  std::vector<fs::path> old;
  std::int64_t kept = 0;
  for (const auto& path : committed_checkpoints(folder_)) {
    const auto step = step_of(path);
    if (step > newest)
      move_aside(path, "is of a later step than the newest checkpoint");
    else if (kept < options_.keep)
      ++kept;
    else if (options_.keep_every == 0 || step % options_.keep_every != 0)
      old.push_back(path);
  }
  for (const auto& path : names_in(folder_))
    if (const auto step = step_of_aside(path); step >= 0 && step < newest) old.push_back(path);
  return old;
}

std::optional<Progress> Store::resume(const State& state, const std::string& mode,
                                      const Accept& accept) {
  wait();
  if (options_.async) reserve(state);
  if (mode == "none") return std::nullopt;
  const auto names = comm::on_rank_0(world_, [&] {
    std::string lines;
    for (const auto& path :
         mode == "auto" ? committed_checkpoints(folder_) : checkpoints_to_resume(mode))
      lines += path.string() + "\n";
    return lines;
  });
  std::vector<fs::path> candidates;
  for (const auto& line : names | std::views::split('\n'))
    if (!line.empty()) candidates.emplace_back(line.begin(), line.end());
  if (candidates.empty()) return std::nullopt;
  for (const auto& path : candidates) {
    try {
      const auto progress = read_state(path, state, world_, OtherGroups::refuse, accept);
      if (world_.rank() == 0) spdlog::info("resuming from {}", path.string());
      return progress;
    } catch (const comm::Failed& failed) {
      if (failed.code() != ExitCode::io_failure) throw;  // another rank tells
    } catch (const Error& error) {
      if (error.code() != ExitCode::io_failure) throw;
      spdlog::warn("checkpoint {} is not used: {}", path.string(), error.what());
    }
  }
  comm::agree(world_, [&] {
    if (world_.rank() != 0) return;
    fail(ExitCode::bad_input,
         "none of the {} checkpoints looked at can be used (newest: {}); see the warnings above, "
         "or start anew under another run.name, with checkpoint.resume=auto",
         candidates.size(), candidates.front().string());
  });
  return std::nullopt;
}

}  // namespace llamesh::checkpoint
