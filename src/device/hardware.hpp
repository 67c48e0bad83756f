#pragma once

#include <cstdint>
#include <string>

#include "core/dtype.hpp"
#include "device/stream.hpp"

namespace llamesh::device {

/// What a rank gets of the links over which a ring of ranks communicates.
struct LinkRate {
  double bandwidth = 0;  ///< bytes/s of a rank, in each direction
  double latency = 0;    ///< seconds of a step from one rank to the next
};

/// The rates of a machine as the planner knows them (inputs/hardware/*.yaml).
struct Hardware {
  std::string name;
  Kind kind = Kind::cuda;        ///< whose kernels and collectives ranks would run: cpu or cuda
  int threads = 1;               ///< of a CPU: its cores
  double memory_bytes = 0;       ///< of a device; of a CPU: of a node
  double memory_bandwidth = 0;   ///< bytes/s of a device that streaming kernels reach
  double host_memory_bytes = 0;  ///< of the host, a device's part of its node's
  double host_bandwidth = 0;     ///< bytes/s of that memory that streaming kernels reach
  double host_link = 0;          ///< bytes/s between host and device, in each direction
  double peak_bf16 = 0;          ///< FLOP/s of a device by its data sheet, without sparsity
  double peak_fp32 = 0;
  double gemm_share = 0;               ///< of the peak that large GEMMs reach
  double attention_forward_share = 0;  ///< the same of attention
  double attention_backward_share = 0;
  double launch_seconds = 0;      ///< of a kernel beyond its work
  double collective_seconds = 0;  ///< of a collective beyond its steps
  LinkRate within_node;
  LinkRate between_nodes;

  double peak(DType dtype) const { return dtype == DType::bf16 ? peak_bf16 : peak_fp32; }
};

}  // namespace llamesh::device
