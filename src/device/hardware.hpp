#pragma once

#include <cstdint>
#include <string>

#include "core/dtype.hpp"
#include "device/stream.hpp"

namespace llamesh::device {

/// Per-rank rates for the links used by a ring of ranks.
struct LinkRate {
  double bandwidth = 0;  ///< bytes/s per rank, in each direction
  double latency = 0;    ///< seconds per step from one rank to the next
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
  double gemm_share = 0;               ///< fraction of peak that large GEMMs reach
  double attention_forward_share = 0;  ///< fraction of peak that attention reaches
  double attention_backward_share = 0;
  double launch_seconds = 0;      ///< fixed cost per kernel
  double collective_seconds = 0;  ///< fixed cost per collective
  LinkRate within_node;
  LinkRate between_nodes;

  double peak(DType dtype) const { return dtype == DType::bf16 ? peak_bf16 : peak_fp32; }
};

}  // namespace llamesh::device
