#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_options.hpp"
#include "comm/mesh/mesh_options.hpp"
#include "data/data_options.hpp"
#include "model/memory_options.hpp"
#include "model/model_config.hpp"
#include "model/parameters.hpp"
#include "optim/optimizer_options.hpp"
#include "sharding/sharding_options.hpp"

namespace llamesh::train {

/// Options under the inputs' `run:` key.
struct RunOptions {
  std::string name = "run";
  std::string folder;  ///< empty: runs/<name>
  std::uint64_t seed = 1;
};

/// Policy for a step whose loss or gradient norm is not finite.
enum class OnNonfinite {
  stop,  ///< ends the run
  skip   ///< makes no update (nonfinite_steps.hpp)
};

/// Options under the inputs' `train:` key.
struct TrainOptions {
  std::int64_t steps = 100;      ///< optimizer steps, counted from the start of the run
  double epochs = 0;             ///< above 0: replaces `steps` by this many passes over the data
  std::int64_t micro_batch = 1;  ///< sequences per rank in one forward pass
  std::int64_t global_batch =
      0;            ///< sequences per optimizer step over all ranks; 0: ranks x micro_batch
  int threads = 0;  ///< per rank; 0: the available cores, divided among the machine's ranks
  OnNonfinite on_nonfinite = OnNonfinite::stop;
  int gemm_sm_count_target = 0;  ///< SMs that GEMMs target on a GPU; 0: all
  std::string gemm_table;        ///< for ops::use_gemm_table(); empty: the library's own choices
  model::TrainedOptions trained;
};

/// Options under the inputs' `evaluate:` key.
struct EvaluateOptions {
  std::int64_t every_steps = 0;  ///< 0: never, not even at the end
  std::int64_t batches = 0;      ///< micro-batches per rank; 0: all validation data
};

/// Detail of the balance of experts in metrics.jsonl and TensorBoard.
enum class ExpertMetrics : std::uint8_t { total, per_layer };

/// Options under the inputs' `log:` key.
struct LogOptions {
  std::int64_t every_steps = 1;  ///< between log lines; metrics.jsonl has every step
  bool tensorboard = false;      ///< event files in <run>/tensorboard
  bool report = true;            ///< report.html at the end of the run
  std::string openmetrics;       ///< file for node_exporter's textfile collector, *.prom
  bool ranks = false;            ///< a log per rank, log.rank-00012.txt
  ExpertMetrics experts = ExpertMetrics::total;
};

/// Policy for replicas of a shard that differ.
enum class OnMismatch : std::uint8_t {
  stop,
  heal,  ///< the majority's shards replace differing ones
};

/// Options under the inputs' `debug:` key.
struct DebugOptions {
  bool contract = false;  ///< every step compares the collectives called along each axis
  std::int64_t replica_hash_every = 0;  ///< steps between replica comparisons; 0: none
  OnMismatch on_mismatch = OnMismatch::stop;
};

/// Options under the inputs' `profile:` key.
struct ProfileOptions {
  std::string steps;  ///< "10-12" or "10": traced into <run>/trace; empty: none
};

struct Inputs;
/// Returns true if a fresh run's checkpoints refer to a base model for frozen weights.
bool refers_to_base(const Inputs& in);

/// All options of a run, from every layer, as filled in by config/.
struct Inputs {
  RunOptions run;
  model::ModelConfig model;
  checkpoint::PretrainedOptions pretrained;
  comm::MeshOptions mesh;
  sharding::TensorOptions tensor;
  sharding::ShardingOptions sharding;
  sharding::PrecisionOptions precision;
  model::MemoryOptions memory;
  data::DataOptions data;
  optim::OptimizerOptions optimizer;
  optim::ScheduleOptions schedule;
  TrainOptions train;
  EvaluateOptions evaluate;
  checkpoint::CheckpointOptions checkpoint;
  LogOptions log;
  DebugOptions debug;
  ProfileOptions profile;
  /// Log lines on inputs that are replaced or left to a default. Not a key.
  std::vector<std::string> notes;
};

}  // namespace llamesh::train
