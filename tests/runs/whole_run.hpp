#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/format/state_reader.hpp"
#include "checkpoint/models/stored_model.hpp"
#include "core/file.hpp"
#include "model/description/parameters.hpp"
#include "runs/small_run.hpp"
#include "train/job/watch.hpp"
#include "train/run/run.hpp"
#include "train/run/run_checkpoints.hpp"

namespace llamesh::test {

/// A folder on rank 0 that all ranks share.
class SharedFolder {
 public:
  SharedFolder() : path_(world().broadcast(own_.path().string())) {}
  ~SharedFolder() { world().barrier(); }  // nobody may be in it when rank 0 removes it
  const std::filesystem::path& path() const { return path_; }

 private:
  TemporaryFolder own_;
  std::filesystem::path path_;
};

/// Returns inputs for a small run with 12 steps in the shared folder; it saves every 5 steps.
inline train::Inputs inputs_in(const std::filesystem::path& folder) {
  // Each rank would write the same text to the same file, so only one does.
  train::Inputs in;
  if (world().rank() == 0) in = small_inputs(folder);
  world().barrier();
  if (world().rank() != 0) in = small_inputs(TemporaryFolder().path());
  in.data.train = {(folder / "text.txt").string()};
  in.run.folder = (folder / "run").string();
  in.train.steps = 12;
  in.checkpoint.every_steps = 5;
  in.checkpoint.keep = 9;
  return in;
}

/// Checks losses and gradient norms, which adapters' small gradients make less exact.
inline void expect_alike(const Outcome& outcome, const Outcome& expected) {
  ASSERT_EQ(outcome.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < outcome.losses.size(); ++i) {
    EXPECT_NEAR(outcome.losses[i], expected.losses[i], 1e-5 * expected.losses[i]) << "step " << i;
    EXPECT_NEAR(outcome.norms[i], expected.norms[i], 1e-3 * expected.norms[i]) << "step " << i;
  }
}

inline void run_to_the_end(const train::Inputs& in) {
  const auto setup = plan::make_planned_setup(world(), in);
  auto watchdog = train::watch_over(world());
  EXPECT_EQ(train::run(world(), setup, "run: {}\n", {}, watchdog).code, ExitCode::done);
  world().barrier();
}

/// Trains for some steps and ends as if killed: saves and removes nothing at the end.
inline void train_and_vanish(const train::Inputs& in, std::int64_t steps) {
  const auto setup = plan::make_planned_setup(world(), in);
  auto watchdog = train::watch_over(world());
  comm::agree(world(), [&] {
    if (world().rank() == 0) make_folder(in.run.folder);
  });
  train::Deadline deadline(in.run.folder, world().rank() == 0);
  comm::DeviceMesh mesh(world(), setup.topology, setup.mesh);
  train::Trainer trainer(world(), setup, mesh);
  train::JobReport report(world(), setup, deadline);
  const std::string config = "run: {}\n";
  train::RunCheckpoints checkpoints(world(), setup, config, trainer, watchdog, report);
  report.open();
  const auto event = checkpoints.resume({});
  report.start(event, trainer.step(), checkpoints.own_checkpoints(), config, 0);
  checkpoints.reserve_memory();
  while (trainer.step() < steps) {
    report.on_step(trainer.train_step());
    if (checkpoints.due_in_memory()) checkpoints.save_in_memory();
    if (checkpoints.due(trainer.step())) checkpoints.save();
  }
  checkpoints.finish();
}

inline std::string checkpoint_of(const train::Inputs& in, const char* step) {
  return in.run.folder + "/checkpoints/step_000000" + step;
}

/// Reads a dataset from a checkpoint; empty if there is none.
inline std::vector<float> dataset(const train::Inputs& in, const char* step,
                                  const std::string& path) {
  const std::filesystem::path checkpoint = checkpoint_of(in, step);
  const auto manifest = checkpoint::read_manifest(checkpoint);
  const auto entry = std::ranges::find(manifest.datasets, path, &checkpoint::DatasetEntry::path);
  if (entry == manifest.datasets.end()) return {};
  std::vector<float> values(static_cast<std::size_t>(entry->numel()));
  checkpoint::for_each_range(checkpoint, *entry, [&](std::int64_t at, std::span<const float> some) {
    std::ranges::copy(some, values.begin() + at);
  });
  return values;
}

/// Returns every parameter of a stored model, one after the other.
inline std::vector<float> stored_weights(const checkpoint::StoredModel& stored,
                                         const model::ParameterTable& table) {
  std::vector<float> all;
  for (std::size_t p = 0; p < table.parameters.size(); ++p) {
    const auto whole = Box::whole(table.parameters[p].shape);
    const auto at = all.size();
    all.resize(at + static_cast<std::size_t>(whole.numel()));
    stored.read(static_cast<model::ParameterId>(p), {whole, 0, whole.numel()},
                std::span(all).subspan(at));
  }
  return all;
}

/// Runs, and continues from step 5 on another mesh: the final weights must be near.
inline void expect_continues_on(const comm::MeshOptions& mesh, const train::Inputs& in) {
  run_to_the_end(in);
  const auto config = in.model.resolved();
  const auto table = parameter_table(config);
  const auto weights_of = [&](const train::Inputs& run) {
    const auto at = checkpoint::locate(checkpoint_of(run, "12"));
    return stored_weights(*checkpoint::open_model(at, config, table), table);
  };
  const auto unbroken = weights_of(in);

  auto other = in;
  other.run.folder += "-other";
  other.checkpoint.resume = checkpoint_of(in, "05");
  other.mesh = mesh;
  run_to_the_end(other);
  const auto resumed = weights_of(other);
  ASSERT_EQ(resumed.size(), unbroken.size());
  for (std::size_t i = 0; i < resumed.size(); ++i)
    ASSERT_NEAR(resumed[i], unbroken[i], 1e-4) << "element " << i;
}

}  // namespace llamesh::test
