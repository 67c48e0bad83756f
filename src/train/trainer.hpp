#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/device_mesh.hpp"
#include "data/loader.hpp"
#include "data/validation.hpp"
#include "device/staging.hpp"
#include "model/causal_lm.hpp"
#include "optim/optimizer.hpp"
#include "sharding/fsdp.hpp"
#include "sharding/mesh_tensor_parallel.hpp"
#include "train/gemm_peak.hpp"
#include "train/metrics.hpp"
#include "train/nonfinite_steps.hpp"
#include "train/plan.hpp"
#include "train/setup.hpp"
#include "train/stragglers.hpp"

namespace llamesh::train {

/// Trainer for steps and evaluation. run.cpp handles everything between the steps.
class Trainer {
 public:
  /// Allocates memory, sets the initial weights and starts reading data. Collective; borrows the
  /// arguments.
  Trainer(const comm::Communicator& world, const Setup& setup, comm::DeviceMesh& mesh);

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
  /// Returns the mean loss over the validation data, in nats per token, the same on every rank.
  /// Throws at the end if data cannot be read.
  double evaluate(const OnProgress& on_progress = [] {});

  std::int64_t step() const { return step_; }
  std::int64_t tokens() const { return tokens_; }
  /// Continues after step `step`; the caller has filled the state.
  void resume_from(std::int64_t step, std::int64_t tokens);

  /// Describes a step's memory on the rank with the highest peak, as planned before the first step.
  std::string describe_memory() const;
  /// Describes model, mesh, strategy, threads and their speed in one line.
  std::string describe() const;
  /// Describes each source of training data in one line.
  std::vector<std::string> describe_data() const { return setup_.train_tokens->describe(); }
  /// Measures the peak GEMM rate over all ranks together, the denominator of MFU. Called before the
  /// first step; without it MFU is 0. Takes a fifth of a second. Collective.
  void measure_gemm_peak();
  /// Returns the known peak, in FLOP/s; must have been measured.
  double gemm_rate() const { return peak_.value().rate(); }
  /// Returns the tensors that a checkpoint stores.
  const sharding::ShardedState& state() const { return state_; }
  /// Notes that work in the compute stream has overwritten the master weights from outside.
  void on_master_weights_loaded() { fsdp_.on_master_weights_loaded(); }
  /// Returns the bf16 matmul method, as recorded in a checkpoint (bf16_product_choice.hpp).
  std::string bf16_products() const;
  /// Uses the method recorded in a checkpoint. Collective.
  void keep_bf16_products(const std::string& recorded);

 private:
  /// Times for one axis on a CPU, in seconds: in its collectives, and with the compute stream
  /// waiting for them.
  struct AxisSeconds {
    float in_collectives = 0;
    float exposed = 0;
  };
  using Clock = std::chrono::steady_clock;
  /// Ordered like DeviceMesh::all(), which has fewer entries.
  using SecondsByAxis = std::array<AxisSeconds, 16>;

  /// A rank's part of a step's record.
  struct StepPart {
    double loss = 0;          ///< sum over its tokens
    double squared_norm = 0;  ///< over its gradient shards
    bool broken = false;      ///< a collective was aborted: the two above are invalid
    double seconds = 0;
    double own_seconds = 0;   ///< without its waits for others
    std::int64_t in_use = 0;  ///< bytes of memory
    std::int64_t peak = 0;
    std::int64_t on_host = 0;   ///< bytes of host memory, in addition to the device's
    double copies_exposed = 0;  ///< seconds waiting for copies to and from the host
    std::int64_t request = 0;
    SecondsByAxis axes = {};
  };
  /// An axis' totals up to this step.
  struct AxisCounters {
    std::int64_t sent = 0;  ///< bytes
    double in_collectives = 0, exposed = 0;
  };

  void plan_memory();
  std::int64_t load_micro_batches();
  void forward_backward(float scale, const OnProgress& on_progress);
  std::vector<StepPart> exchange(Clock::time_point start, const Request& request);
  bool sum_up(StepRecord& record, const std::vector<StepPart>& parts, double divisor) const;
  void decide_on_nonfinite(StepRecord& record, const std::vector<StepPart>& parts);
  SecondsByAxis seconds_by_axis();
  double seconds_exposed_by_copies() const {
    return fsdp_.seconds_exposed_by_copies() + model_.seconds_exposed_by_copies();
  }
  void measure(StepRecord& record, const std::vector<StepPart>& parts);
  void measure_utilization(StepRecord& record);
  void measure_exposed(StepRecord& record, const std::vector<StepPart>& parts);
  data::BatchPartition batch_partition() const;
  std::vector<model::Batch> as_tensors(std::span<data::TokenBatch> batches);

  const comm::Communicator& world_;
  const Setup& setup_;
  int threads_;
  comm::DeviceMesh& mesh_;
  const comm::Communicator& data_group_;  ///< ranks whose losses add up
  std::vector<int> data_ranks_;           ///< their world ranks
  sharding::ShardedState state_;
  sharding::Fsdp fsdp_;
  std::unique_ptr<model::TensorParallel> tensor_;
  optim::Optimizer optimizer_;
  model::CausalLM model_;
  std::optional<data::Loader> loader_;
  std::unique_ptr<data::ValidationData> validation_;
  std::vector<data::TokenBatch> micro_batches_;      ///< for the current step
  device::Staging ids_, targets_, document_starts_;  ///< for all of them
  std::optional<GemmPeak> peak_;
  StepPlan planned_;
  std::int64_t step_ = 0;     ///< steps done
  std::int64_t tokens_ = 0;   ///< trained on since the start of the run
  double former_update_ = 0;  ///< seconds for the previous step's update
  double waited_ = 0;         ///< seconds in this step until the others had read their data
  Stragglers stragglers_;
  NonfiniteSteps nonfinite_;
  double copies_exposed_before_ = 0;
  std::map<const comm::DeviceMesh::Axis*, AxisCounters> before_;
};

}  // namespace llamesh::train
