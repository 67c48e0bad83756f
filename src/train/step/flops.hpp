#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/mesh/communicator.hpp"
#include "core/dtype.hpp"
#include "model/model_config.hpp"
#include "model/parameters.hpp"

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
/// windows. Other load on the machine makes it too low, which shows once a step's GEMMs run faster.
class GemmPeak {
 public:
  /// Calls `measure` for the rate in each window, now and whenever a step was faster; in that case
  /// it may return none.
  explicit GemmPeak(std::function<std::vector<double>()> measure);

  double rate() const { return rate_; }
  /// Returns "GEMM peak 235 GFLOP/s", with a note if the windows differ.
  std::string describe() const;

  /// Records a step whose matmuls alone ran at `rate` FLOP/s. If that exceeds the peak, measures
  /// the peak again, raises it to at least that rate, and returns true.
  bool observe(double rate);

  /// Returns the utilization at `rate` model FLOP/s, at most 1: PaLM's formula counts attention
  /// beyond the causal half and between documents, which is not computed.
  double utilization(double rate) const;

  /// Measures again, replacing the earlier windows.
  void measure_again();

 private:
  std::function<std::vector<double>()> measure_;
  double rate_ = 0;
  double median_ = 0;  ///< over the windows
};

/// Returns the combined rate of all ranks in each window. Collective.
std::vector<double> measured_gemm_rates(const comm::Communicator& world, DType dtype);

}  // namespace llamesh::train
