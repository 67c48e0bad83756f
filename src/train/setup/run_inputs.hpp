#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/format/checkpoint_options.hpp"
#include "comm/mesh/mesh_options.hpp"
#include "core/enum_names.hpp"
#include "data/data_options.hpp"
#include "model/description/model_config.hpp"
#include "model/description/parameters.hpp"
#include "model/layers/memory_options.hpp"
#include "optim/optimizer_options.hpp"
#include "sharding/pipeline_stages.hpp"
#include "sharding/sharding_options.hpp"

namespace llamesh::train {

/// Options under the inputs' `run:` key.
struct RunOptions {
  std::string name = "run";
  std::string folder;  ///< empty: runs/<name>
  std::uint64_t seed = 1;
  std::string notes;              ///< shown in the report, as they are
  std::vector<std::string> tags;  ///< likewise
};

/// Policy for a step whose loss or gradient norm is not finite.
enum class OnNonfinite {
  stop,  ///< ends the run
  skip   ///< makes no update (nonfinite_steps.hpp)
};
inline EnumNames<OnNonfinite> enum_names(OnNonfinite) {
  return {{{"stop", OnNonfinite::stop}, {"skip", OnNonfinite::skip}}};
}

/// Names the launches that have the same bits (docs/reproducibility.md).
enum class Reproducible : std::uint8_t {
  launch,  ///< those with the same mesh, micro-batches and threads
  mesh,    ///< also those with others: sums have one order, whoever adds them
};
inline EnumNames<Reproducible> enum_names(Reproducible) {
  return {{{"launch", Reproducible::launch}, {"mesh", Reproducible::mesh}}};
}

/// Loss that a run minimizes, as a mean.
enum class Objective : std::uint8_t {
  next_token,  ///< cross-entropy of the tokens in the loss
  dpo,         ///< ops::PairLoss::dpo, over pairs of answers
  ipo,         ///< ops::PairLoss::ipo
};
inline EnumNames<Objective> enum_names(Objective) {
  using enum Objective;
  return {{{"next_token", next_token}, {"dpo", dpo}, {"ipo", ipo}}};
}

/// Options under the inputs' `train.early_stop:` key (ValidationRecord).
struct EarlyStopOptions {
  std::int64_t patience = 0;  ///< evaluations without an improvement that end the run; 0: never
  double min_delta = 0;       ///< smallest decrease of the loss that counts, nats per token
};

/// Options under the inputs' `train:` key.
struct TrainOptions {
  Objective objective = Objective::next_token;
  double beta = 0.1;             ///< of dpo and ipo: strength of the pull to the reference model
  std::int64_t steps = 100;      ///< optimizer steps, counted from the start of the run
  double epochs = 0;             ///< above 0: replaces `steps` by this many passes over the data
  std::int64_t micro_batch = 1;  ///< sequences per rank in one forward pass
  std::int64_t global_batch =
      0;  ///< sequences per optimizer step over all ranks; 0: ranks x micro_batch
  EarlyStopOptions early_stop;
  int threads = 0;  ///< per rank; 0: the available cores, divided among the machine's ranks
  OnNonfinite on_nonfinite = OnNonfinite::stop;
  Reproducible reproducible = Reproducible::launch;
  int reproducible_tensor = 0;   ///< tensor ranks whose bits such a run has; 0: mesh.axes.tensor
  int reproducible_context = 0;  ///< context ranks, likewise
  int gemm_sm_count_target = 0;  ///< SMs that GEMMs target on a GPU; 0: all
  std::string gemm_table;        ///< for ops::use_gemm_table(); empty: the library's own choices
  model::TrainedOptions trained;
};

/// Validation data with a loss of their own.
struct ValidationSet {
  std::string name;
  std::vector<std::string> files;
};

/// Name of the set `data.validation`.
inline constexpr const char* default_validation_set = "validation";

/// Options under the inputs' `evaluate:` key.
struct EvaluateOptions {
  std::int64_t every_steps = 0;  ///< 0: never, not even at the end
  /// At most one of these limits is set; 0: all of each set.
  std::int64_t sequences = 0;        ///< per set, over all ranks
  std::int64_t batches = 0;          ///< micro-batches per rank and set
  std::vector<ValidationSet> files;  ///< sets beside `data.validation`
  std::string best_by;  ///< set that decides on the best checkpoints and early stop; empty: first
  std::vector<std::string> prompts;  ///< the model writes on behind them (sample_texts.hpp)
  bool chat = false;                 ///< they are a user's messages
  std::int64_t max_tokens = 64;      ///< per prompt
};

/// Detail of the balance of experts in metrics.jsonl and TensorBoard.
enum class ExpertMetrics : std::uint8_t { total, per_layer };
inline EnumNames<ExpertMetrics> enum_names(ExpertMetrics) {
  using enum ExpertMetrics;
  return {{{"total", total}, {"per_layer", per_layer}}};
}

/// Options under the inputs' `reference:` key.
struct ReferenceOptions {
  std::string hf;  ///< the reference model's folder; empty: the model with which the run starts
};

/// Options under the inputs' `log:` key.
struct LogOptions {
  std::int64_t every_steps = 1;  ///< between log lines; metrics.jsonl has every step
  bool tensorboard = false;      ///< event files in <run>/tensorboard
  bool report = true;            ///< report.html at the end of the run
  std::string openmetrics;       ///< file for node_exporter's textfile collector, *.prom
  bool ranks = false;            ///< a log per rank, log.rank-00012.txt
  ExpertMetrics experts = ExpertMetrics::total;
  std::int64_t layers_every = 0;  ///< steps between norms by layer in metrics.jsonl; 0: none
};

/// Policy for bits that differ although they must be equal.
enum class OnMismatch : std::uint8_t {
  stop,
  heal,  ///< the majority's shards replace differing ones; a step's passes are computed again
};
inline EnumNames<OnMismatch> enum_names(OnMismatch) {
  return {{{"stop", OnMismatch::stop}, {"heal", OnMismatch::heal}}};
}

/// Options under the inputs' `debug:` key.
struct DebugOptions {
  bool contract = false;  ///< every step compares the collectives called along each axis
  std::int64_t replica_hash_every = 0;  ///< steps between replica comparisons; 0: none
  std::int64_t replay_every = 0;        ///< steps between repetitions of a micro-batch; 0: none
  std::int64_t state_hash_every = 0;    ///< steps between hashes of the state (hash_state); 0: none
  OnMismatch on_mismatch = OnMismatch::stop;
};

/// Options under the inputs' `profile:` key.
struct ProfileOptions {
  std::string steps;  ///< "10-12" or "10": traced into <run>/trace; empty: none
};

struct Inputs;
/// Returns true if a fresh run's checkpoints refer to a base model for frozen weights.
bool refers_to_base(const Inputs& in);

/// Fills in what an objective on pairs decides about the data: whole pairs fill
/// sequences, and a token sees only its own document.
void resolve_objective(Inputs& in);

/// All options of a run, from every layer, as filled in by config/.
struct Inputs {
  RunOptions run;
  model::ModelConfig model;
  checkpoint::PretrainedOptions pretrained;
  comm::MeshOptions mesh;
  sharding::PipelineOptions pipeline;
  sharding::TensorOptions tensor;
  sharding::ShardingOptions sharding;
  sharding::PrecisionOptions precision;
  model::MemoryOptions memory;
  data::DataOptions data;
  optim::OptimizerOptions optimizer;
  optim::ScheduleOptions schedule;
  TrainOptions train;
  ReferenceOptions reference;
  EvaluateOptions evaluate;
  checkpoint::CheckpointOptions checkpoint;
  LogOptions log;
  DebugOptions debug;
  ProfileOptions profile;

  /// Returns the validation sets: `data.validation` if given, then evaluate.files. Random tokens
  /// are one set for any names.
  std::vector<ValidationSet> validation_sets() const {
    if (data.format == data::Format::random) return {{default_validation_set, {}}};
    auto sets = evaluate.files;
    if (!data.validation.empty())
      sets.insert(sets.begin(), {default_validation_set, data.validation});
    return sets;
  }
  /// Returns the name of the set that decides; empty without validation data.
  std::string deciding_set() const {
    const auto sets = validation_sets();
    if (sets.size() > 1 && !evaluate.best_by.empty()) return evaluate.best_by;
    return sets.empty() ? "" : sets.front().name;
  }

  /// Log lines on inputs that are replaced or left to a default. Not a key.
  std::vector<std::string> notes;
};

}  // namespace llamesh::train
