#include "checkpoint/store/store.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <ranges>

#include "checkpoint/format/format.hpp"
#include "checkpoint/format/h5.hpp"
#include "checkpoint/store/location.hpp"
#include "comm/mpi/exchange.hpp"
#include "comm/mpi/session.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/slurm/own_job.hpp"
#include "device/device.hpp"

namespace llamesh::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Writes the name of the best checkpoint that exists into the file BEST; removes the file if there
/// is none.
void point_to_best(const fs::path& folder, std::span<const std::int64_t> steps,
                   std::span<const std::int64_t> best) {
  const auto file = folder / best_name;
  const auto found = std::ranges::find_first_of(best, steps);
  if (found == best.end())
    fs::remove(file);
  else
    write_durably(file, name_of_step(*found) + "\n");
}

}  // namespace

Store::Store(fs::path folder, const CheckpointOptions& options, const comm::Communicator& world)
    : folder_(std::move(folder)), options_(options), world_(world.duplicate()) {
  comm::agree(world_, [&] {
    validate(options_.keep >= 1, "checkpoint.keep is {}; at least 1 is kept", options_.keep);
    h5::check_hints(options_.mpi_io_hints);
    if (world_.rank() != 0) return;
    make_folder(folder_);
    lease_ = std::make_unique<Lease>(folder_);
    // Remove them now, since a save may not find room otherwise.
    for (const auto& partial : partial_checkpoints_in(folder_)) remove_quietly(partial);
  });
}

Store::~Store() {
  try {
    wait();
  } catch (const comm::PeerFailure&) {  // another rank reports it
  } catch (const std::exception& error) {
    spdlog::error("the last checkpoint was not saved: {}", error.what());
  }
}

fs::path Store::save(const State& state, const TrainState& progress,
                     std::vector<std::int64_t> best) {
  wait();
  if (!options_.async) {
    write(state, progress, best);
  } else {
    thread_ = std::thread([this, held = copy(state), progress, best = std::move(best)] {
      try {
        write(held, progress, best);
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

/// Touches the pages now, since page faults take longer than the copy itself.
void Store::reserve(const State& state) {
  std::int64_t bytes = 0;
  for (const auto& group : state.groups)
    for (const auto& shard : group.shards) bytes += shard.bytes();
  if (!options_.async || copy_.bytes() >= bytes) return;
  copy_ = {};
  copy_ = device::Buffer::on_host(bytes);
  std::memset(copy_.data(), 0, static_cast<std::size_t>(bytes));
}

State Store::copy(const State& state) {
  reserve(state);
  State held{state.layout, state.rank, {}};
  std::int64_t at = 0;
  for (const auto& group : state.groups) {
    held.groups.push_back({group.path, {}, device::MemoryKind::host, group.contents, group.gaps});
    for (const auto& shard : group.shards) {
      const auto place = shard ? copy_.tensor(shard.dtype(), {shard.numel()}, at) : Tensor();
      if (shard) device::download(device::stream_of(group.memory), place.data(), shard);
      held.groups.back().shards.push_back(place);
      at += shard.bytes();
    }
  }
  return held;
}

void Store::write(const State& state, const TrainState& progress,
                  std::span<const std::int64_t> best) {
  const auto start = std::chrono::steady_clock::now();
  const fs::path partial = comm::on_rank_0(world_, [&] { return prepare(state, progress); });
  Manifest manifest;
  try {
    manifest = write_state(partial / state_name, state, progress, world_, options_);
    comm::agree(world_, [&] {
      if (world_.rank() == 0) commit(partial, manifest);
    });
  } catch (...) {
    if (world_.rank() == 0) remove_quietly(partial);
    throw;
  }
  committed_step_ = progress.step;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  slowest_save_ = std::max(slowest_save_.load(), seconds.count());
  prune(manifest, best);
}

void Store::check_room(const State& state) {
  comm::agree(world_, [&] {
    if (world_.rank() == 0) require_room(state);
  });
}

void Store::require_room(const State& state) const {
  std::int64_t bytes = 0;
  for (const auto& entry : datasets_of(state)) bytes += 4 * entry.numel();
  std::error_code error;
  const auto space = fs::space(folder_, error);
  if (!error && space.available < static_cast<std::uintmax_t>(bytes))
    fail(ExitCode::io_failure,
         "{} has {} bytes free, but a checkpoint needs {}; make room, or lower checkpoint.keep",
         folder_.string(), space.available, bytes);
}

/// Creates an empty folder for the new checkpoint, and checks that its disk has room.
std::string Store::prepare(const State& state, const TrainState& progress) const {
  lease_->check_in_place();
  const auto partial =
      folder_ / fmt::format("{}.partial-{}", name_of_step(progress.step), job_name());
  remove_quietly(partial);
  require_room(state);
  make_folder(partial);
  return partial.string();
}

void Store::commit(const fs::path& partial, const Manifest& manifest) const {
  const auto text = to_text(manifest);
  validate(
      std::ssize(text) <= longest_manifest,
      "the manifest of this checkpoint has {} bytes, and at most {} are read; shard over fewer "
      "ranks (sharding.strategy=hybrid_shard)",
      text.size(), longest_manifest);
  write_durably(partial / manifest_name, text);
  const auto target = folder_ / name_of_step(manifest.progress.step);
  std::error_code error;
  if (fs::exists(fs::symlink_status(target, error))) {
    spdlog::warn("{} is in the way of a new checkpoint: it is quarantined", target.string());
    if (exchange_paths(partial, target)) {
      quarantine(partial, target);  // it holds the old checkpoint
    } else {
      quarantine(target, target);
      rename_path(partial, target);
    }
  } else {
    rename_path(partial, target);
  }
  sync_folder(folder_);
}

/// Removes everything no longer kept. The checkpoint is already committed: a failure here, except
/// when reading it back, does not undo that.
void Store::prune(const Manifest& newest, std::span<const std::int64_t> best) {
  const auto step = newest.progress.step;
  const auto path = folder_ / name_of_step(step);
  std::vector<fs::path> stale;  // on rank 0: formerly quarantined checkpoints
  std::vector<std::int64_t> steps;
  verified_.erase(step);  // an earlier checkpoint at this step
  on_rank_0_quietly([&] {
    quarantine_later_than(folder_, step);
    stale = stale_in_quarantine(folder_, step);
    for (const auto& one : committed_checkpoints(folder_)) steps.push_back(step_of(one));
  });
  steps = comm::broadcast_list(world_, steps);
  if (steps.size() > 1 || world_.max(std::ssize(stale)) > 0) {
    try {
      verify_written(path, newest, world_);
      verified_.insert(step);
    } catch (const Error& error) {  // any other error says nothing about the file
      if (error.code() == ExitCode::io_failure)
        on_rank_0_quietly(
            [&] { quarantine_because(path, "does not read back as it was written"); });
      throw;
    }
  }
  const auto doomed = steps_to_remove(steps, best);
  on_rank_0_quietly([&] {
    write_durably(folder_ / "LATEST", path.filename().string() + "\n");
    point_to_best(folder_, steps, best);
    for (const auto old : doomed) remove_committed(folder_ / name_of_step(old));
    for (const auto& old : stale) remove_committed(old);
  });
}

/// Returns the removable steps among `steps`, newest first. Only good checkpoints count as kept; a
/// damaged one found here is quarantined.
std::vector<std::int64_t> Store::steps_to_remove(std::span<const std::int64_t> steps,
                                                 std::span<const std::int64_t> best) {
  const auto keep = static_cast<std::size_t>(options_.keep);
  const auto removable = [&](std::int64_t step) {
    const bool periodic = options_.keep_every > 0 && step % options_.keep_every == 0;
    return !periodic && std::ranges::find(best, step) == best.end();
  };
  std::vector<std::int64_t> doomed;
  // If nothing would be removed anyway, read nothing.
  if (steps.size() <= keep || std::ranges::none_of(steps.subspan(keep), removable)) return doomed;
  std::size_t kept = 0;
  for (const auto step : steps) {
    if (kept < keep)
      kept += is_good(step) ? 1 : 0;
    else if (removable(step))
      doomed.push_back(step);
  }
  return doomed;
}

/// Returns true if this launch has fully verified the checkpoint: when it saved it, when it resumed
/// from it, or else now.
bool Store::is_good(std::int64_t step) {
  if (verified_.contains(step)) return true;
  const auto path = folder_ / name_of_step(step);
  try {
    verify(path, world_);
    verified_.insert(step);
    return true;
  } catch (const comm::PeerFailure& failed) {
    if (failed.code() != ExitCode::io_failure) throw;  // another rank logs it
  } catch (const Error& error) {  // any other error says nothing about the file
    if (error.code() != ExitCode::io_failure) throw;
    spdlog::warn("checkpoint {} is damaged: {}", path.string(), error.what());
  }
  on_rank_0_quietly([&] { quarantine_because(path, "does not count among those kept"); });
  return false;
}

void Store::on_rank_0_quietly(const std::function<void()>& work) const {
  if (world_.rank() != 0) return;
  try {
    work();
  } catch (const std::exception& failure) {
    spdlog::warn("after a checkpoint was saved: {}", failure.what());
  }
}

std::optional<TrainState> Store::resume(const State& state, const std::string& mode,
                                        const Accept& accept) {
  wait();
  reserve(state.trained());
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
      if (mode == "auto") verified_.insert(progress.step);
      return progress;
    } catch (const comm::PeerFailure& failed) {
      if (failed.code() != ExitCode::io_failure) throw;  // another rank reports it
    } catch (const Error& error) {
      if (error.code() != ExitCode::io_failure) throw;
      spdlog::warn("checkpoint {} is not used: {}", path.string(), error.what());
    }
  }
  comm::agree(world_, [&] {
    if (world_.rank() != 0) return;
    fail(ExitCode::bad_input,
         "none of the {} checkpoints looked at can be used (newest: {}); see the warnings above, "
         "or start a new run under another run.name, with checkpoint.resume=auto",
         candidates.size(), candidates.front().string());
  });
  return std::nullopt;
}

}  // namespace llamesh::checkpoint
