#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/topology.hpp"
#include "data/training_data.hpp"
#include "sharding/shard_layout.hpp"
#include "train/run_inputs.hpp"

namespace llamesh::train {

/// A run planned but not started. Its construction finds any error in the inputs, on every rank in
/// the same way, before memory is allocated or a file written.
struct Setup {
  Inputs inputs;  ///< with model, global_batch, steps and folder resolved
  comm::Topology topology;
  comm::ParallelDims mesh;
  std::unique_ptr<const model::ParameterTable>
      table;  ///< at a fixed address, since layout borrows it
  std::unique_ptr<const sharding::ShardLayout> layout;
  std::int64_t micro_batches = 1;  ///< per rank and optimizer step
  /// Log line with the resolution of sharding.keep_bf16_weights: auto; empty if there is none.
  std::string bf16_weights;
  // Tokenized text is in memory shared by the ranks on a machine: destruction is collective.
  std::optional<data::TrainingData> train_tokens;
  std::optional<data::TokenStream> validation_tokens;  ///< set if the run validates
};

/// Plans everything except the data; needs neither ranks nor files. Throws a user error if the
/// inputs do not fit the topology or one another. Pure.
Setup plan_setup(const Inputs& inputs, comm::Topology topology);

/// Plans the whole run. Throws the user error on one rank and comm::PeerFailure on the others.
/// Collective.
Setup make_setup(const comm::Communicator& world, const Inputs& inputs);

}  // namespace llamesh::train
