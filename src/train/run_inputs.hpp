#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_options.hpp"
#include "checkpoint/hf/hf_options.hpp"
#include "comm/mesh_options.hpp"
#include "data/data_options.hpp"
#include "model/llama_config.hpp"
#include "model/memory_options.hpp"
#include "optim/optimizer_options.hpp"
#include "sharding/sharding_options.hpp"

namespace llamesh::train {

/// `run:` of the inputs.
struct RunOptions {
  std::string name = "run";
  std::string folder;  ///< empty: runs/<name>
  std::uint64_t seed = 1;
};

/// What a step does whose loss or gradient norm is not finite.
enum class OnNonfinite {
  stop,  ///< ends the run
  skip   ///< makes no update (nonfinite_steps.hpp)
};

/// `train:` of the inputs.
struct TrainOptions {
  std::int64_t steps = 100;      ///< optimizer steps, counted from the start of the run
  double epochs = 0;             ///< above 0: replaces `steps` by that many passes over the data
  std::int64_t micro_batch = 1;  ///< sequences of a rank in one forward pass
  std::int64_t global_batch =
      0;  ///< sequences of an optimizer step over all ranks; 0: ranks x micro_batch
  int threads =
      0;  ///< of each rank; 0: the cores it may use, shared among the ranks of the machine
  OnNonfinite on_nonfinite = OnNonfinite::stop;
  int gemm_sm_count_target = 0;  ///< SMs of a GPU that products are meant for; 0: all of them
  std::string gemm_table;  ///< file of ops::use_gemm_table(); empty: the library's own choices
};

/// `evaluate:` of the inputs.
struct EvaluateOptions {
  std::int64_t every_steps = 0;  ///< 0: never, also not at the end
  std::int64_t batches = 0;      ///< micro-batches of each rank; 0: all of the validation data
};

/// `log:` of the inputs.
struct LogOptions {
  std::int64_t every_steps = 1;  ///< between two lines of the log; metrics.jsonl has all
  bool tensorboard = false;      ///< event files in <run>/tensorboard
  bool report = true;            ///< report.html when the run ends
  bool ranks = false;            ///< a log of each rank, log.rank-00012.txt
};

/// What a run does when replicas of a shard differ.
enum class OnMismatch : std::uint8_t {
  stop,
  heal,  ///< the majority's shards replace those that differ
};

/// `debug:` of the inputs.
struct DebugOptions {
  bool contract = false;  ///< each step compares which collectives the ranks of an axis have called
  std::int64_t replica_hash_every = 0;  ///< steps between comparisons of replicas; 0: none
  OnMismatch on_mismatch = OnMismatch::stop;
};

/// `profile:` of the inputs.
struct ProfileOptions {
  std::string steps;  ///< "10-12" or "10": traced into <run>/trace; empty: none
};

/// All options of a run, those of each layer, as config/ fills them in.
struct Inputs {
  RunOptions run;
  model::LlamaConfig model;
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
  /// Lines for the log: what the inputs replace or leave to a default. Not a key.
  std::vector<std::string> notes;
};

}  // namespace llamesh::train
