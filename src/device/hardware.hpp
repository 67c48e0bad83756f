#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/dtype.hpp"
#include "device/stream.hpp"

namespace llamesh::device {

/// Per-rank rates for the links used by a ring of ranks.
struct LinkRate {
  double bandwidth = 0;  ///< bytes/s per rank, in each direction
  double latency = 0;    ///< seconds per step from one rank to the next
};

/// A measured rate that depends on size.
struct RateTable {
  std::vector<std::pair<double, double>> points;  ///< size and rate, by ascending size

  /// Interpolates the logarithms. Below the first point the rate falls with the size, as for a
  /// fixed time per call; above the last one it is constant.
  double at(double size) const;
};

using RateTables = std::map<std::string, RateTable, std::less<>>;

/// Rates that `llamesh bench hardware` has measured, for one rank while all ranks of its node work.
struct MeasuredRates {
  int ranks = 0;  ///< on a node; 0: nothing is measured
  /// By precision.parameters and kernel (ops/kernels.inc): FLOP/s of a GEMM by its smallest
  /// dimension and of attention by sequence length, bytes/s of other kernels by bytes.
  std::map<DType, RateTables> kernels;
  /// By dtype and CollectiveCall::kind: bytes/s by bytes that a rank sends.
  std::map<DType, RateTables> within_node, between_nodes;
  double disk = 0;  ///< bytes/s at which a node's ranks together write a checkpoint
};

/// Machine rates for the planner (inputs/hardware/*.yaml).
struct Hardware {
  std::string name;
  Kind kind = Kind::cuda;        ///< backend that ranks would run on: cpu or cuda
  int threads = 1;               ///< CPU cores
  double memory_bytes = 0;       ///< per device, or per node for a CPU
  double memory_bandwidth = 0;   ///< bytes/s that streaming kernels reach on a device
  double host_memory_bytes = 0;  ///< host memory per device
  double host_bandwidth = 0;     ///< bytes/s that streaming kernels reach in host memory
  double host_link = 0;          ///< bytes/s between host and device, in each direction
  double peak_bf16 = 0;          ///< FLOP/s per device by its data sheet, without sparsity
  double peak_fp32 = 0;
  double peak_fp8 = 0;                 ///< 0: FP8 matrices are multiplied in bf16
  double gemm_share = 0;               ///< fraction of peak that large GEMMs reach
  double attention_forward_share = 0;  ///< fraction of peak that attention reaches
  double attention_backward_share = 0;
  double attained = 0;        ///< fraction of the kernels' rates that whole runs reach; 0: unknown
  double launch_seconds = 0;  ///< fixed cost per kernel
  double collective_seconds = 0;  ///< fixed cost per collective
  LinkRate within_node;
  LinkRate between_nodes;
  MeasuredRates measured;

  double peak(DType dtype) const {
    return dtype == DType::f32 ? peak_fp32 : dtype == DType::e4m3 ? peak_fp8 : peak_bf16;
  }
  bool is_measured() const { return measured.ranks > 0; }
};

}  // namespace llamesh::device
