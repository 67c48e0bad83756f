#include <utility>

#include "core/error.hpp"
#include "core/trace.hpp"
#include "ops/arithmetic.hpp"
#include "ops/cpu/kernels.hpp"
#include "ops/ops.hpp"
#include "ops/simulated/kernels.hpp"
#ifdef LLAMESH_HAS_CUDA
#include "ops/cuda/attention/attention_choice.hpp"
#include "ops/cuda/gemm/gemm.hpp"
#include "ops/cuda/kernels.hpp"
#endif

namespace llamesh::ops {
namespace {

/// Wrappers that record a CPU kernel as a trace event, and name a simulated one.
template <class Function>
struct Named;

template <class Result, class... Arguments>
struct Named<Result(Stream&, Arguments...)> {
  template <Result (*kernel)(Stream&, Arguments...), const char* name>
  static Result call(Stream& stream, Arguments... arguments) {
    const TraceScope scope("kernel", name);
    return kernel(stream, std::forward<Arguments>(arguments)...);
  }
  template <Result (*kernel)(Stream&, Arguments...), const char* name>
  static Result simulate(Stream& stream, Arguments... arguments) {
    device::Simulation::current().set_kernel(name);
    return kernel(stream, std::forward<Arguments>(arguments)...);
  }
};

#define LLAMESH_KERNEL(name) constexpr char name_of_##name[] = #name;
#include "ops/kernels.inc"
#undef LLAMESH_KERNEL

}  // namespace

#define LLAMESH_TRACED(name) \
  (Named<decltype(name)::Function>::template call<cpu::name, name_of_##name>)

#define LLAMESH_SIMULATED(name) \
  (Named<decltype(name)::Function>::template simulate<simulated::name, name_of_##name>)

#ifdef LLAMESH_HAS_CUDA
#define LLAMESH_KERNEL(name) \
  constinit const decltype(name) name(LLAMESH_TRACED(name), LLAMESH_SIMULATED(name), cuda::name);
#else
#define LLAMESH_KERNEL(name) \
  constinit const decltype(name) name(LLAMESH_TRACED(name), LLAMESH_SIMULATED(name));
#endif
#include "ops/kernels.inc"
#undef LLAMESH_KERNEL
#undef LLAMESH_TRACED
#undef LLAMESH_SIMULATED

std::string gpu_arithmetic() {
#ifdef LLAMESH_HAS_CUDA
  return cuda::arithmetic();
#else
  return "";
#endif
}

std::string gpu_attention() {
#ifdef LLAMESH_HAS_CUDA
  return cuda::attention_library();
#else
  return "";
#endif
}

std::string used_attention() {
#ifdef LLAMESH_HAS_CUDA
  return cuda::used_attention();
#else
  return "";
#endif
}

std::int64_t max_attention_scratch() {
#ifdef LLAMESH_HAS_CUDA
  return cuda::max_attention_scratch();
#else
  return 0;
#endif
}

}  // namespace llamesh::ops
