#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "core/dtype.hpp"

namespace llamesh::train {

/// The peak FLOP/s of the GEMMs of all ranks together, the denominator of MFU: the best of several
/// time windows. Other load on the machine makes it too low, which shows when a step's GEMMs are
/// faster.
class GemmPeak {
 public:
  /// `measure` gives the rate of each window. It is called now and when a step was faster; then it
  /// may return none.
  explicit GemmPeak(std::function<std::vector<double>()> measure);

  double rate() const { return rate_; }
  /// "GEMM peak 235 GFLOP/s", with a note where the windows differ.
  std::string describe() const;

  /// Records a step whose matmuls alone ran at `rate` FLOP/s. When that is more than the peak, the
  /// peak is measured again and becomes at least that much; returns whether.
  bool observe(double rate);

  /// The utilization by `rate` model FLOP/s, at most 1: what PaLM's formula counts of attention
  /// beyond the causal half, or between documents, is not computed.
  double utilization(double rate) const;

  /// Measures again, replacing the earlier windows.
  void measure_again();

 private:
  std::function<std::vector<double>()> measure_;
  double rate_ = 0;
  double median_ = 0;  ///< of the windows
};

/// The rates of all ranks together in each window. Collective.
std::vector<double> measured_gemm_rates(const comm::Communicator& world, DType dtype);

}  // namespace llamesh::train
