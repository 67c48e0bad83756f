#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "core/dtype.hpp"

namespace llamesh::train {

/// What the GEMMs of all ranks reach together, in FLOP/s: the denominator of MFU. It is the best of
/// several windows of time. Whatever else the machine did meanwhile made it too low, which shows
/// when a step multiplies faster.
class GemmPeak {
 public:
  /// `measure` gives the rate of each window. It is called now and when a step was faster; then it
  /// may give none.
  explicit GemmPeak(std::function<std::vector<double>()> measure);

  double rate() const { return rate_; }
  /// "GEMM peak 235 GFLOP/s", and what speaks against it: windows that differ.
  std::string describe() const;

  /// Takes note of a step whose matrix products alone were `rate` FLOP/s. When that is more than
  /// the peak, the peak is measured again and becomes at least that much; returns whether.
  bool observe(double rate);

  /// The utilization by `rate` model FLOP/s, at most 1: what PaLM's formula counts of attention
  /// beyond the causal half, or between documents, is not computed.
  double utilization(double rate) const;

  /// Measures now instead of what was measured before.
  void measure_again();

 private:
  std::function<std::vector<double>()> measure_;
  double rate_ = 0;
  double median_ = 0;  ///< of the windows
};

/// The rates of all ranks together in each window. Collective.
std::vector<double> measured_gemm_rates(const comm::Communicator& world, DType dtype);

}  // namespace llamesh::train
