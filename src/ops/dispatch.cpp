#include "ops/cpu/kernels.hpp"
#include "ops/simulated/kernels.hpp"
#ifdef LLAMESH_HAS_CUDA
#include "ops/cuda/kernels.hpp"
#endif

namespace llamesh::ops {

#ifdef LLAMESH_HAS_CUDA
#define LLAMESH_KERNEL(name) \
  constinit const decltype(name) name(cpu::name, simulated::name, cuda::name);
#else
#define LLAMESH_KERNEL(name) constinit const decltype(name) name(cpu::name, simulated::name);
#endif
#include "ops/kernels.inc"
#undef LLAMESH_KERNEL

std::string gpu_attention() {
#ifdef LLAMESH_HAS_CUDA
  return cuda::attention_library();
#else
  return "";
#endif
}

}  // namespace llamesh::ops
