#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "comm/topology.hpp"
#include "data/training_data.hpp"
#include "sharding/shard_layout.hpp"
#include "train/run_inputs.hpp"

namespace llamesh::train {

/// A run thought through on paper: whatever can be wrong with its inputs is found when this is
/// made, on every rank in the same way, before any memory is taken or any file written.
struct Setup {
  Inputs inputs;  ///< with model, global_batch, steps and folder resolved
  comm::Topology topology;
  comm::ParallelDims mesh;
  std::unique_ptr<const model::ParameterTable> table;  ///< at a fixed address: layout borrows it
  std::unique_ptr<const sharding::ShardLayout> layout;
  std::int64_t micro_batches = 1;  ///< of each rank in an optimizer step
  // Tokenized text lies in memory that the ranks of a machine share: the end of it is collective.
  std::optional<data::TrainingData> train_tokens;
  std::optional<data::TokenStream> validation_tokens;  ///< where there is to be a validation
};

/// What of it needs neither ranks nor files: everything but the data. Throws a user error where the
/// inputs do not fit the topology or one another. Pure.
Setup lay_out(const Inputs& inputs, comm::Topology topology);

/// Collective. Throws the user error on one rank and comm::PeerFailure on the others.
Setup make_setup(const comm::Communicator& world, const Inputs& inputs);

}  // namespace llamesh::train
