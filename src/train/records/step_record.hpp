#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "train/records/expert_loads.hpp"

namespace llamesh::train {

/// Measurements from one optimizer step, the same on every rank. step_quantities.hpp says where
/// they are written.
struct StepRecord {
  std::int64_t step = 0;  ///< counts from 1: steps done so far
  double loss = 0;        ///< mean over the step's tokens, nats
  double grad_norm = 0;   ///< before clipping
  double lr = 0;
  std::optional<double> lr_muon = {};  ///< empty: no Muon
  std::int64_t tokens = 0;             ///< since the start of the run
  /// On the slowest rank, from the exchange of the previous step's values to this one's: the
  /// previous update, and this step's data and passes, but not the time between the two steps.
  double seconds = 0;
  double tokens_per_second = 0;
  /// See flops.hpp; relative to the measured GEMM rate over all ranks. Empty: that is unsure.
  std::optional<double> mfu = {};
  /// Share of its time in which a rank's device was busy (device/utilization.hpp), mean over ranks.
  std::optional<double> utilization = {};
  std::int64_t allocated_after_step = 0;  ///< bytes in use after the passes, maximum over ranks
  std::int64_t peak = 0;                  ///< peak bytes in use within the step, maximum over ranks
  std::int64_t predicted_allocated_after_step =
      0;  ///< planned before the first step (Setup::plan_memory)
  std::int64_t predicted_peak = 0;
  /// Bytes of other host memory in use after the passes, maximum over ranks: offloaded state, a
  /// GPU's pinned buffers, the copy for an asynchronous checkpoint.
  std::int64_t on_host = 0;
  std::int64_t predicted_on_host = 0;                ///< without checkpoints
  std::map<std::string, std::int64_t> traffic = {};  ///< per axis: bytes sent per rank in the step
  /// Per axis: the part that goes to another node, mean over all ranks.
  std::map<std::string, std::int64_t> traffic_between_nodes = {};
  /// Relative errors that quantization made in the step: sqrt(squares of errors / of numbers), over
  /// all ranks. Empty: nothing is quantized.
  std::optional<double> weight_quantization_error = {}, gradient_quantization_error = {};
  std::optional<double> replica_quantization_error = {};
  std::optional<double> outer_quantization_error = {};  ///< in the latest exchange
  // Means over document pairs. Empty: there are none.
  std::optional<double> chosen_reward = {}, rejected_reward = {};  ///< model::PairResult::rewards
  std::optional<double> reward_margin = {};    ///< the preferred one's, less the other one's
  std::optional<double> reward_accuracy = {};  ///< share of pairs with a margin above 0
  std::optional<double> chosen_log_prob = {}, rejected_log_prob = {};
  // Norms by layer, and by name for parameters outside layers. Empty: log.layers_every is not due.
  std::map<std::string, double> layer_grad_norm = {};    ///< before clipping
  std::map<std::string, double> layer_weight_norm = {};  ///< before the update
  double time = 0;           ///< when metrics.jsonl got it, seconds since 1970
  std::int64_t request = 0;  ///< maximum over ranks (Trainer::Request)
  // Means over ranks.
  double seconds_compute = 0;                  ///< part of `seconds` without waiting for any axis
  std::map<std::string, double> exposed = {};  ///< per axis: seconds waiting for it
  /// Per axis: seconds in its collectives, hidden or not. Empty on GPUs.
  std::map<std::string, double> in_collectives = {};
  /// Energy of all nodes since the previous step's passes ended, in joules, with what lay between
  /// (evaluation, save). Empty if a counter is missing (device/energy.hpp).
  std::optional<double> joules = {};
  std::optional<double> tokens_per_joule = {};
  std::optional<ExpertBalance> experts = {};   ///< of the step's tokens, if there are experts
  std::vector<std::string> stragglers = {};    ///< a line for each rank newly found slow
  std::vector<std::string> idle_experts = {};  ///< a line for each layer with newly idle experts
  std::vector<std::string> healed = {};        ///< a line for each repetition of the passes
  std::vector<std::string> spikes = {};        ///< a line for each number that begins a spike
  std::string skipped = {};                    ///< reason for making no update; "": updated

  bool is_finite() const { return std::isfinite(loss) && std::isfinite(grad_norm); }
};

}  // namespace llamesh::train
