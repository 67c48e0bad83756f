#include <utility>

#include "core/error.hpp"
#include "core/trace.hpp"
#include "ops/cpu/kernels.hpp"
#include "ops/ops.hpp"
#include "ops/simulated/kernels.hpp"
#ifdef LLAMESH_HAS_CUDA
#include "ops/cuda/attention/attention_choice.hpp"
#include "ops/cuda/kernels.hpp"
#endif

namespace llamesh::ops {
namespace {

/// Wrapper that records a CPU kernel as a trace event.
template <class Function>
struct Traced;

template <class Result, class... Arguments>
struct Traced<Result(Stream&, Arguments...)> {
  template <Result (*kernel)(Stream&, Arguments...), const char* name>
  static Result call(Stream& stream, Arguments... arguments) {
    const TraceScope scope("kernel", name);
    return kernel(stream, std::forward<Arguments>(arguments)...);
  }
};

#define LLAMESH_KERNEL(name) constexpr char name_of_##name[] = #name;
#include "ops/kernels.inc"
#undef LLAMESH_KERNEL

}  // namespace

#define LLAMESH_TRACED(name) \
  (Traced<decltype(name)::Function>::template call<cpu::name, name_of_##name>)

#ifdef LLAMESH_HAS_CUDA
#define LLAMESH_KERNEL(name) \
  constinit const decltype(name) name(LLAMESH_TRACED(name), simulated::name, cuda::name);
#else
#define LLAMESH_KERNEL(name) \
  constinit const decltype(name) name(LLAMESH_TRACED(name), simulated::name);
#endif
#include "ops/kernels.inc"
#undef LLAMESH_KERNEL
#undef LLAMESH_TRACED

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
