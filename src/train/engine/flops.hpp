#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/mpi/communicator.hpp"
#include "core/dtype.hpp"
#include "model/description/model_config.hpp"
#include "model/description/parameters.hpp"

namespace llamesh::train {

/// Returns the matmul FLOPs per token, forward and backward: 6 N, where N counts the parameters
/// used in matmuls. No step does fewer. A frozen parameter counts 4, without its own gradient, and
/// 2 below the lowest trained parameter, where no backward pass takes place.
double matmul_flops_per_token(const model::ParameterTable& table);

/// Returns the FLOPs per token, forward and backward, at sequence length T: 6 N + 12 L (H E) T
/// (Chowdhery et al., PaLM, appendix B). A layer with a sliding window W < T counts W (2 - W / T)
/// keys in place of T.
double flops_per_token(const model::ModelConfig& config, const model::ParameterTable& table,
                       std::int64_t sequence);

/// Returns the FLOPs per token with only the causal half of attention: 6 N + 6 L (H E) T.
double causal_flops_per_token(const model::ModelConfig& config, const model::ParameterTable& table,
                              std::int64_t sequence);

/// Peak GEMM FLOP/s over all ranks together, the denominator of MFU: the best among several time
/// windows. Other load on the machine makes it too low. This shows in windows that differ, or once
/// a step's GEMMs run faster; then the peak is unsure, and so is MFU.
class GemmPeak {
 public:
  /// Calls `measure` for the rate in each window, now and in observe(), where it may return none.
  explicit GemmPeak(std::function<std::vector<double>()> measure);

  /// Returns the best window, or the fastest step if that was faster.
  double rate() const;
  /// Returns true if the windows agree and no step was faster.
  bool is_sure() const;
  /// Returns "GEMM peak 235 GFLOP/s", with a note if it is unsure.
  std::string describe() const;

  /// Records a step whose matmuls alone ran at `rate` FLOP/s. If that exceeds the peak, measures
  /// the peak again. As long as the peak is unsure, also measures after 1, 2, 4, 8 ... further
  /// steps. Returns whether it has measured.
  bool observe(double rate);

  /// Returns the utilization at `rate` model FLOP/s, at most 1: PaLM's formula counts attention
  /// beyond the causal half and between documents, which is not computed. Empty if the peak is
  /// unsure.
  std::optional<double> utilization(double rate) const;

 private:
  void measure_again();

  std::function<std::vector<double>()> measure_;
  double best_ = 0;    ///< window
  double median_ = 0;  ///< over the windows
  double fastest_step_ = 0;
  std::uint64_t unsure_steps_ = 0;  ///< since the peak was last sure
};

/// Returns the combined rate of all ranks in each window. Collective.
std::vector<double> measured_gemm_rates(const comm::Communicator& world, DType dtype);

}  // namespace llamesh::train
