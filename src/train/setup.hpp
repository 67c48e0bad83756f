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

/// A run planned without running it: any error in its inputs is found by construction, on every
/// rank in the same way, before memory is allocated or a file written.
struct Setup {
  Inputs inputs;  ///< with model, global_batch, steps and folder resolved
  comm::Topology topology;
  comm::ParallelDims mesh;
  std::unique_ptr<const model::ParameterTable>
      table;  ///< at a fixed address, since layout borrows it
  std::unique_ptr<const sharding::ShardLayout> layout;
  std::int64_t micro_batches = 1;  ///< of each rank in an optimizer step
  /// For the log: what sharding.keep_bf16_weights: auto came to; empty where it says nothing.
  std::string bf16_weights;
  // Tokenized text is in shared memory of the ranks of a machine: destruction is collective.
  std::optional<data::TrainingData> train_tokens;
  std::optional<data::TokenStream> validation_tokens;  ///< set where the run validates
};

/// The part that needs neither ranks nor files: everything but the data. Throws a user error where
/// the inputs do not fit the topology or one another. Pure.
Setup plan_setup(const Inputs& inputs, comm::Topology topology);

/// Collective. Throws the user error on one rank and comm::PeerFailure on the others.
Setup make_setup(const comm::Communicator& world, const Inputs& inputs);

}  // namespace llamesh::train
