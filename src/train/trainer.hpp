#pragma once

#include <memory>
#include <string>

#include "comm/device_mesh.hpp"
#include "data/loader.hpp"
#include "data/validation.hpp"
#include "model/llama.hpp"
#include "optim/optimizer.hpp"
#include "sharding/fsdp.hpp"
#include "train/metrics.hpp"
#include "train/progress.hpp"
#include "train/setup.hpp"

namespace llamesh::train {

/// A training run, from the initial weights (or a checkpoint) to the last step.
class Trainer {
 public:
  /// Takes the memory, opens the run folder and starts reading data. `config` is the resolved
  /// inputs as YAML, kept beside the run. Collective; `world` and `setup` are borrowed.
  Trainer(const comm::Communicator& world, const Setup& setup, const std::string& config);

  /// Trains to the last step.
  void run();

  /// One optimizer step: forward and backward of every micro-batch, then one update.
  StepRecord train_step();
  /// The mean loss over the validation data, nats a token. Same on every rank.
  double evaluate();

  std::int64_t step() const { return step_; }
  /// FLOP/s of all ranks' GEMMs together, as measured at the start: the denominator of MFU.
  double gemm_rate() const { return gemm_rate_; }
  const sharding::Fsdp& fsdp() const { return fsdp_; }
  const optim::Optimizer& optimizer() const { return optimizer_; }

 private:
  std::int64_t load_micro_batches();
  void record(StepRecord& record, double seconds);
  void evaluate_and_tell(Progress& progress);
  data::Dealing dealing() const;
  model::Batch as_tensors(data::Batch& batch) const;

  const comm::Communicator& world_;
  const Setup& setup_;
  int threads_;
  comm::DeviceMesh mesh_;
  sharding::Fsdp fsdp_;
  optim::Optimizer optimizer_;
  model::Llama llama_;
  data::Loader loader_;
  std::unique_ptr<data::ValidationData> validation_;
  std::vector<data::Batch> micro_batches_;  ///< of the step at hand
  std::unique_ptr<MetricsFile> metrics_;    ///< rank 0 only
  double gemm_rate_ = 0;
  std::int64_t step_ = 0;                            ///< steps done
  std::int64_t tokens_ = 0;                          ///< trained on since the start of the run
  std::map<std::string, std::int64_t> sent_before_;  ///< bytes sent by axis, until the last step
};

}  // namespace llamesh::train
