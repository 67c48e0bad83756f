#include "train/run/replay.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "checkpoint/format/state.hpp"
#include "checkpoint/format/state_reader.hpp"
#include "checkpoint/store/location.hpp"
#include "checkpoint/store/store_folder.hpp"
#include "comm/mpi/session.hpp"
#include "core/file.hpp"
#include "core/log.hpp"
#include "train/health/state_hash.hpp"
#include "train/job/watch.hpp"
#include "train/run/resume.hpp"
#include "train/run/run_checkpoints.hpp"
#include "train/step/trainer.hpp"

namespace llamesh::train {
namespace {

namespace fs = std::filesystem;

bool same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

constexpr std::int64_t max_config_bytes = 64 << 20;

/// Returns the mesh on which the step was trained; empty if it is not known.
std::string mesh_of_step(const RunMetrics& recorded, std::int64_t step) {
  std::string mesh;
  for (const auto& start : recorded.starts)
    if (start.step < step) mesh = start.mesh;
  return mesh;
}

/// Returns the layers whose hashes differ, or that only one has.
std::vector<std::string> differing(const StateHashes& a, const StateHashes& b) {
  std::vector<std::string> parts;
  for (const auto& [part, hash] : a)
    if (const auto found = b.find(part); found == b.end() || found->second != hash)
      parts.push_back(part);
  for (const auto& [part, hash] : b)
    if (!a.contains(part)) parts.push_back(part);
  return parts;
}

}  // namespace

ReplayPlan plan_replay(const fs::path& run, const RunMetrics& recorded, std::int64_t first,
                       std::int64_t last) {
  validate(!recorded.steps.empty(), "{} has recorded no step yet", run.string());
  for (const auto step : {first, last})
    validate(recorded.steps.contains(step), "{} has no record of step {}: it has steps {} to {}",
             run.string(), step, recorded.steps.begin()->first, recorded.steps.rbegin()->first);
  const auto checkpoints = checkpoint::committed_checkpoints(run / "checkpoints");  // newest first
  const auto before = std::ranges::find_if(
      checkpoints, [&](const auto& one) { return checkpoint::step_of(one) < first; });
  validate(before != checkpoints.end(),
           "{} has no checkpoint before step {}: {}; replay a later step", run.string(), first,
           checkpoints.empty()
               ? "it has none"
               : fmt::format("its oldest is of step {}", checkpoint::step_of(checkpoints.back())));
  // A later checkpoint has the inputs with which the steps were trained; without one, the last
  // launch trained them.
  const auto after = std::find_if(checkpoints.rbegin(), checkpoints.rend(), [&](const auto& one) {
    return checkpoint::step_of(one) >= last;
  });
  const auto config = after == checkpoints.rend()
                          ? read_file(run / "config.yaml", max_config_bytes, ExitCode::bad_input)
                          : checkpoint::read_manifest(*after).progress.config;
  return {*before, config, mesh_of_step(recorded, first)};
}

std::string difference(const StepRecord& recorded, const StepRecord& replayed,
                       const StateHashes& recorded_state, const StateHashes& replayed_state) {
  const auto line = [&](const char* name, double was, double is) {
    return fmt::format("step {} differs: {} {:.17g} recorded, {:.17g} replayed", replayed.step,
                       name, was, is);
  };
  if (!same_bits(recorded.loss, replayed.loss)) return line("loss", recorded.loss, replayed.loss);
  if (!same_bits(recorded.grad_norm, replayed.grad_norm))
    return line("gradient norm", recorded.grad_norm, replayed.grad_norm);
  if (recorded_state.empty() || replayed_state.empty()) return "";
  const auto parts = differing(recorded_state, replayed_state);
  if (parts.empty()) return "";
  return fmt::format(
      "step {} differs: loss and gradient norm are equal, but not the weights or moments after it "
      "in {}",
      replayed.step, fmt::join(parts, ", "));
}

ReplayEnd replay(const comm::Communicator& world, const Setup& setup, const fs::path& checkpoint,
                 const RunMetrics& recorded, std::int64_t last, comm::Watchdog& watchdog) {
  using comm::Activity;
  watchdog.begin(Activity::building, 0);
  comm::DeviceMesh mesh(world, setup.topology, setup.mesh, setup.order_of_sums());
  Trainer trainer(world, setup, mesh);
  const auto state = checkpoint::state_of(trainer.state());
  watchdog.begin(Activity::resuming, 0, time_for_first_checkpoint(setup));
  const DataOfRun data{setup.inputs.run.seed, fingerprint_of_data(world, setup)};
  const auto saved = checkpoint::read_state(
      checkpoint, state, world, checkpoint::OtherGroups::refuse,
      [&](const checkpoint::TrainState& found) { require_data(found, data); });
  if (world.rank() == 0) warn_of_other_arithmetic(saved, setup.inputs);
  if (saved.base) load_base(world, setup, state, *saved.base);
  trainer.resume_from(saved.step, saved.tokens);
  trainer.keep_bf16_products(saved.bf16_products);
  spdlog::info("replays steps {} to {} from {}, saved on mesh {}, on mesh {}", saved.step + 1, last,
               checkpoint.string(), saved.mesh, comm::to_string(setup.mesh));
  ReplayEnd end;
  end.first = saved.step + 1;
  end.last = saved.step;
  while (end.last < last && end.difference.empty()) {
    watchdog.begin(Activity::training, trainer.step() + 1);
    const auto replayed = trainer.train_step([&] { watchdog.progress(); });
    end.last = replayed.step;
    const auto hashes = recorded.state_hashes.find(replayed.step);
    const bool has_hashes =
        world.max(std::int64_t{hashes != recorded.state_hashes.end()}, "the replayed step") != 0;
    const auto state_now = has_hashes ? hash_state(world, trainer.state()) : StateHashes();
    end.hashed += has_hashes ? 1 : 0;
    end.difference = comm::on_rank_0(world, [&] {
      const auto was = recorded.steps.find(replayed.step);
      if (was == recorded.steps.end()) return std::string();  // a line that could not be read
      return difference(was->second, replayed, has_hashes ? hashes->second : StateHashes(),
                        state_now);
    });
    if (end.difference.empty())
      spdlog::info("step {}: equal, loss {:.6f}, gradient norm {:.4f}", replayed.step,
                   replayed.loss, replayed.grad_norm);
  }
  watchdog.begin(Activity::ending, trainer.step());
  return end;
}

}  // namespace llamesh::train
