#pragma once

#include "core/dtype.hpp"
#include "device/device.hpp"

namespace llamesh::sharding {

/// The virtual ranks for which a rank stands, a turn for each: a grid with the mesh's innermost
/// axes.
struct VirtualRanks {
  int context = 1, tensor = 1;

  int count() const { return context * tensor; }
  int context_of(int turn) const { return turn / tensor; }
  int tensor_of(int turn) const { return turn % tensor; }
};

/// Returns the type in which real ranks would keep each level of a balanced tree that adds up
/// numbers with this type: on CPUs fp32, and on GPUs their own.
inline DType dtype_of_sums(DType dtype) {
  return device::kind_of_kernels() == device::Kind::cuda ? dtype : DType::f32;
}

}  // namespace llamesh::sharding
