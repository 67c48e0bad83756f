#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/mesh/topology.hpp"
#include "comm/mpi/communicator.hpp"
#include "comm/transports/collectives.hpp"
#include "data/loader.hpp"
#include "data/tokenized_text.hpp"
#include "data/training_data.hpp"
#include "data/validation.hpp"
#include "device/memory_meter.hpp"
#include "sharding/shard_layout.hpp"
#include "sharding/virtual_ranks.hpp"
#include "train/setup/pipeline_schedule.hpp"
#include "train/setup/run_inputs.hpp"

namespace llamesh::train {

/// A rank's memory for an optimizer step. Bytes are device bytes unless noted, counted as in
/// metrics.jsonl.
struct PlannedMemory {
  std::int64_t allocated_after_step = 0;  ///< bytes in use at the end of the passes
  std::int64_t peak = 0;                  ///< maximum within the step
  device::MemoryByUse at_peak{};
  std::int64_t on_host = 0;  ///< bytes in host memory, in addition to the device's
  /// Bytes in the memory of the rank's host for all its ranks: memory checkpoints, and the replicas
  /// on other nodes among them.
  std::int64_t memory_checkpoints = 0;
  std::int64_t remote_replicas = 0;
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
  /// Virtual ranks for which each rank stands, and how these hold the parameters. Null: one each.
  sharding::VirtualRanks virtual_ranks;
  std::unique_ptr<const sharding::ShardLayout> virtual_layout;
  std::int64_t micro_batches = 1;  ///< per rank and optimizer step
  /// Neighboring data ranks that read neighboring sequences (data::BatchPartition); 0: all.
  int neighbors = 0;
  PipelineShape pipeline;        ///< one stage without a pipeline axis
  std::string pipeline_warning;  ///< log line if stages mostly wait; empty if there is none
  /// Layers of each chunk of the model, over all pipeline stages; one chunk without those.
  std::vector<model::LayerRange> chunks;
  /// Returns the stage of a rank.
  int stage(int rank) const { return mesh.rank_in_group(mesh.pipeline(), rank); }
  /// Returns the ranks whose losses add up to the step's: those with the last stage's layers.
  std::vector<int> loss_ranks(int rank) const {
    return mesh.group(mesh.data_axes(), mesh.group(mesh.pipeline(), rank).back());
  }
  /// Returns the tokens of a sequence that each rank has: all, without a context axis.
  std::int64_t row_length() const {
    return inputs.data.sequence_length / mesh.group_size(mesh.context());
  }
  /// Returns how many document pairs a micro-batch may have; 0 if the run has none.
  std::int64_t max_pairs() const {
    return inputs.data.pairs
               ? model::max_pairs(inputs.train.micro_batch, inputs.data.sequence_length)
               : 0;
  }
  /// Returns true if the run has the same bits on every mesh.
  bool is_mesh_reproducible() const { return inputs.train.reproducible == Reproducible::mesh; }
  comm::SumOrder order_of_sums() const {
    return is_mesh_reproducible() ? comm::SumOrder::tree : comm::SumOrder::fastest;
  }
  /// Returns which sequences of a step rank `rank` reads.
  data::BatchPartition batch_partition(int rank) const;
  /// Returns the part of a validation set that the run evaluates, as rank `rank` reads it. Borrows
  /// `tokens`.
  data::ValidationData validation_data(const data::TokenStream& tokens, int rank) const;
  /// Log line with the resolution of sharding.keep_bf16_weights: auto; empty if there is none.
  std::string bf16_weights;
  /// Plans a step's memory on a rank with this many threads. Empty: nothing is predicted
  /// (plan::make_planned_setup() sets it).
  std::function<PlannedMemory(const Setup& setup, int rank, int threads)> plan_memory;
  // Tokenized text is in memory shared by the ranks on a machine: destruction is collective.
  std::optional<data::TrainingData> train_tokens;
  /// For each of Inputs::validation_sets(); empty if the run does not validate.
  std::vector<data::TokenStream> validation_tokens;
};

/// Plans everything except the data; needs neither ranks nor files. Throws a user error if the
/// inputs do not fit the topology or one another. Pure.
Setup plan_setup(const Inputs& inputs, comm::Topology topology);

/// Plans the whole run, except that sharding.keep_bf16_weights: auto remains and acts like false
/// (plan::make_planned_setup() resolves it). Throws the user error on one rank and
/// comm::PeerFailure on the others. Collective.
Setup make_setup(const comm::Communicator& world, const Inputs& inputs);

/// Sets this rank's number of compute threads and returns it. 0: the cores available to this
/// process, divided among the ranks on its machine that may use the same ones. Warns if rank 0 has
/// fewer cores than `requested`. Collective.
int set_threads(int requested, const comm::Communicator& world);

/// Calls `tokenize` on one rank per machine and returns its result; the other ranks see the same
/// bytes in shared memory. Collective, and so is the destruction of the result's last copy. If it
/// throws on any rank, all ranks throw, as in agree(). Throws a user error if a machine has too
/// little shared memory.
std::vector<data::TokenizedText> tokenize_once(
    const comm::Communicator& world,
    const std::function<std::vector<data::TokenizedText>()>& tokenize);

}  // namespace llamesh::train
