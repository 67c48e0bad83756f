#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/mesh/topology.hpp"
#include "data/training_data.hpp"
#include "device/memory_meter.hpp"
#include "sharding/shard_layout.hpp"
#include "train/run/run_inputs.hpp"

namespace llamesh::train {

/// A rank's memory for an optimizer step. Bytes are device bytes unless noted, counted as in
/// metrics.jsonl.
struct PlannedMemory {
  std::int64_t valley = 0;  ///< bytes in use at the end of the passes
  std::int64_t peak = 0;    ///< maximum within the step
  device::MemoryByUse at_peak{};
  std::int64_t on_host = 0;  ///< bytes in host memory, in addition to the device's
};

/// Formats "weights 3.7 MiB, gradients 3.7 MiB, ..."; skips anything below a MiB.
std::string describe(const device::MemoryByUse& bytes);

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
  /// Returns the tokens of a sequence that each rank has: all, without a context axis.
  std::int64_t row_length() const {
    return inputs.data.sequence_length / mesh.group_size(mesh.context());
  }
  /// Log line with the resolution of sharding.keep_bf16_weights: auto; empty if there is none.
  std::string bf16_weights;
  /// Plans a step's memory on a rank with this many threads. Empty: nothing is predicted
  /// (plan::make_planned_setup() sets it).
  std::function<PlannedMemory(const Setup& setup, int rank, int threads)> plan_memory;
  // Tokenized text is in memory shared by the ranks on a machine: destruction is collective.
  std::optional<data::TrainingData> train_tokens;
  std::optional<data::TokenStream> validation_tokens;  ///< set if the run validates
};

/// Plans everything except the data; needs neither ranks nor files. Throws a user error if the
/// inputs do not fit the topology or one another. Pure.
Setup plan_setup(const Inputs& inputs, comm::Topology topology);

/// Plans the whole run, except that sharding.keep_bf16_weights: auto remains and acts like false
/// (plan::make_planned_setup() resolves it). Throws the user error on one rank and
/// comm::PeerFailure on the others. Collective.
Setup make_setup(const comm::Communicator& world, const Inputs& inputs);

}  // namespace llamesh::train
