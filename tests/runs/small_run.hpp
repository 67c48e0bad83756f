#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "plan/step_plan.hpp"
#include "support.hpp"
#include "temporary_folder.hpp"
#include "train/step/trainer.hpp"

namespace llamesh::test {

/// Returns inputs for a tiny model with odd sizes that learns a tiny text in 20 steps with 12
/// sequences each, in fp32.
inline train::Inputs small_inputs(const std::filesystem::path& folder) {
  const auto text = folder / "text.txt";
  std::ofstream out(text);
  for (int i = 0; i < 400; ++i) out << "the " << i * i % 97 << " lamps of mesh " << i % 7 << "\n";
  train::Inputs in;
  in.run.folder = (folder / "run").string();
  in.model.hidden_size = 36;
  in.model.intermediate_size = 52;
  in.model.num_hidden_layers = 3;
  in.model.num_attention_heads = 6;
  in.model.num_key_value_heads = 3;
  in.model.vocab_size = 257;
  in.data.train = {text.string()};
  in.data.sequence_length = 24;
  in.train.steps = 20;
  in.train.micro_batch = 1;
  in.train.global_batch = 12;
  in.train.threads = 1;
  in.optimizer.lr = 3e-3;
  in.schedule.warmup_steps = 4;
  return in;
}

/// Results of a run: its losses, this rank's master shards, and its traffic.
struct Outcome {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<float> masters;
  std::map<std::string, std::int64_t> traffic, traffic_between_nodes;  ///< in the last step
};

inline Outcome run(const comm::Communicator& ranks, const train::Inputs& inputs) {
  const train::Setup setup = plan::make_planned_setup(ranks, inputs);
  comm::DeviceMesh mesh(ranks, setup.topology, setup.mesh);
  train::Trainer trainer(ranks, setup, mesh);
  trainer.start();
  Outcome outcome;
  while (trainer.step() < inputs.train.steps) {
    const auto record = trainer.train_step();
    outcome.losses.push_back(record.loss);
    outcome.norms.push_back(record.grad_norm);
    outcome.traffic = record.traffic;
    outcome.traffic_between_nodes = record.traffic_between_nodes;
  }
  for (std::size_t u = 0; u < setup.layout->units().size(); ++u) {
    const auto shard = trainer.state().masters().shards[u].span<float>();
    outcome.masters.insert(outcome.masters.end(), shard.begin(), shard.end());
  }
  return outcome;
}

/// Runs on this rank alone: the reference for every mesh.
inline Outcome run_alone(train::Inputs inputs,
                         const comm::Communicator& alone = world().split(world().rank(), 0)) {
  inputs.mesh = {};
  inputs.pipeline = {};
  inputs.sharding.strategy = sharding::Strategy::no_shard;
  inputs.sharding.spec.reset();
  inputs.run.folder += "-alone";
  return run(alone, inputs);
}

}  // namespace llamesh::test
