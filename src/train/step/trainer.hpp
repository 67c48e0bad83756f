#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/mesh/device_mesh.hpp"
#include "train/engine/engine.hpp"
#include "train/health/step_observers.hpp"
#include "train/records/step_part.hpp"
#include "train/records/step_record.hpp"
#include "train/setup/setup.hpp"
#include "train/step/batch_feed.hpp"
#include "train/step/gradient_norm.hpp"
#include "train/step/sample_texts.hpp"
#include "train/step/step_meter.hpp"

namespace llamesh::train {

/// Trainer for steps and evaluation. run.cpp handles everything between the steps.
class Trainer {
 public:
  /// Allocates memory. Collective; borrows the arguments. start() or resume_from() comes next.
  Trainer(const comm::Communicator& world, const Setup& setup, comm::DeviceMesh& mesh);

  /// Draws the initial weights, which are the reference model's, and starts reading data at the
  /// first step. Collective.
  void start();
  /// Draws initial weights only, before resume_from(0, 0).
  void draw(sharding::ShardedState::Units units);
  /// Starts reading data after step `step`; the caller has filled the state. Collective.
  void resume_from(std::int64_t step, std::int64_t tokens);

  /// Callback after each micro-batch.
  using OnProgress = std::function<void()>;

  /// Callback that returns this rank's request to all, given its seconds in the step so far; the
  /// maximum over the ranks is StepRecord::request.
  using Request = std::function<std::int64_t(double seconds)>;

  /// Callback on all ranks if a step's loss or gradient norm is not finite, before anything is
  /// decided about the run. Returns true if it has repaired the state; then the step's passes are
  /// repeated.
  using Repair = std::function<bool()>;

  /// Runs one optimizer step: forward and backward for every micro-batch, then one update, or none
  /// if the record says that it is skipped. Two small collectives over the world enclose the
  /// passes: the number of tokens, which scales the gradients, and all other values in the record
  /// at once.
  StepRecord train_step(
      const OnProgress& on_progress = [] {}, const Request& request = [](double) { return 0; },
      const Repair& repair = [] { return false; });
  /// Returns the mean loss over a validation set (Inputs::validation_sets()), in nats per token or
  /// pair, and the means over pairs, the same on every rank. The record has no other measurements.
  /// Throws at the end if data cannot be read.
  StepRecord evaluate(
      const OnProgress& on_progress = [] {}, std::size_t set = 0);

  /// Returns what the model writes behind evaluate.prompts (SampleTexts::write()).
  std::vector<SampleText> write_samples(const OnProgress& on_progress = [] {});

  /// Computes log-probabilities under the present weights for the streams that `known` lacks, and
  /// returns all. Collective.
  PairReferences compute_references(
      PairReferences known = {}, const OnProgress& on_progress = [] {});
  /// Sets those under the reference model, before the first step on pairs.
  void use_references(PairReferences references) { feed_.use_references(std::move(references)); }

  /// Makes later work on the state's stream see exchanges between replicas that are under way.
  void settle() {
    if (engine_.outer) engine_.outer->settle();
  }
  /// Returns those exchanges, for a checkpoint.
  std::optional<optim::PendingExchanges> exchanges() const {
    return engine_.outer ? engine_.outer->pending() : std::nullopt;
  }
  /// Continues with a checkpoint's exchanges, after resume_from(). Collective.
  void restore_exchanges(const std::optional<optim::PendingExchanges>& exchanges);

  /// Throws exit 93 on one rank if a trained weight is not finite on any: the last update has
  /// diverged, and the state is not worth saving. Reads the master weights once. Collective.
  void check_weights() const;

  std::int64_t step() const { return step_; }
  std::int64_t tokens() const { return tokens_; }

  /// Describes model, mesh, strategy, threads and their speed in one line.
  std::string describe() const;
  /// Describes each source of training data in one line.
  std::vector<std::string> describe_data() const { return setup_.train_tokens->describe(); }
  /// StepMeter::measure_gemm_peak().
  void measure_gemm_peak() { meter_.measure_gemm_peak(); }
  const StepMeter& meter() const { return meter_; }
  const StepObservers& observers() const { return observers_; }
  /// Returns the tensors that a checkpoint stores.
  const sharding::ShardedState& state() const { return engine_.state; }
  /// Notes that work in the compute stream has overwritten the master weights from outside.
  void on_master_weights_loaded() { engine_.fsdp.on_master_weights_loaded(); }
  /// Returns the bf16 matmul method, as recorded in a checkpoint (kernel_choice.hpp).
  std::string bf16_products() const;
  /// Uses the method recorded in a checkpoint. Collective.
  void keep_bf16_products(const std::string& recorded);

 private:
  std::vector<StepPart> run_passes(StepRecord& record, const StepCounts& counts,
                                   const OnProgress& on_progress, const Request& request);
  std::vector<StepPart> exchange(const Request& request);
  void sum_up(StepRecord& record, const std::vector<StepPart>& parts, std::int64_t losses) const;
  template <class Run>
  void run_batches(std::int64_t batches, const OnProgress& on_progress, const Run& run);

  const comm::Communicator& world_;
  const Setup& setup_;
  int threads_;
  comm::DeviceMesh& mesh_;
  const comm::Communicator& loss_group_;  ///< ranks whose losses add up, in all pipeline stages
  std::vector<int> loss_ranks_;           ///< world ranks of those in the last stage
  Engine engine_;
  BatchFeed feed_;
  SampleTexts samples_;
  std::int64_t step_ = 0;    ///< steps done
  std::int64_t tokens_ = 0;  ///< trained on since the start of the run
  GradientNorm norm_;
  StepMeter meter_;
  StepObservers observers_;
};

}  // namespace llamesh::train
