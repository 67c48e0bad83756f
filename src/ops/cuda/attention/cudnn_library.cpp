#include "ops/cuda/attention/cudnn_graph.hpp"

#include <cudnn.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "core/error.hpp"

namespace llamesh::ops::cuda {
namespace {

/// cuDNN version at build time. At run time cuDNN must be at least as new, in the same series.
constexpr std::size_t compiled_for = CUDNN_VERSION;

std::string version_text(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

/// Opens the library by name via the loader, then at its build-time path.
void* open_library() {
  const auto name = fmt::format("libcudnn.so.{}", CUDNN_MAJOR);
  if (void* opened = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return opened;
  return dlopen(LLAMESH_CUDNN_LIBRARY, RTLD_NOW | RTLD_LOCAL);
}

CudnnLibrary open_cudnn() {
  void* const handle = open_library();
  if (handle == nullptr)
    return {nullptr, fmt::format("libcudnn.so.{} cannot be loaded", CUDNN_MAJOR)};
  const auto version =
      reinterpret_cast<decltype(&cudnnGetVersion)>(dlsym(handle, "cudnnGetVersion"));
  if (version == nullptr) return {nullptr, "libcudnn.so has no cudnnGetVersion"};
  const auto found = version();
  if (found < compiled_for || found / 10000 != compiled_for / 10000)
    return {nullptr, fmt::format("cuDNN {} is not the {} or later that llamesh was built with",
                                 version_text(found), version_text(compiled_for))};
  return {handle, "cuDNN " + version_text(found)};
}

/// Returns a library function. cuDNN must be usable.
void* function_named(const char* name) {
  const auto& library = cudnn_library();
  void* const found = library.handle == nullptr ? nullptr : dlsym(library.handle, name);
  expects(found != nullptr, "{} was called: {} has no such function", name, library.text);
  return found;
}

}  // namespace

const CudnnLibrary& cudnn_library() {
  static const auto library = open_cudnn();
  return library;
}

}  // namespace llamesh::ops::cuda

// Functions that llamesh and cudnn_frontend call. Hidden, so that cuDNN's own libraries never bind
// to them. cudnn_frontend could load cuDNN itself (NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING), but its
// cudnn_frontend_shim.h then opens libcudart by name too, and throws if both CUDA 12's and 13's can
// be opened, or neither. llamesh has the CUDA runtime linked in and needs no such file.
#define SEND_ON(Result, name, parameters, arguments)                                  \
  __attribute__((visibility("hidden"))) Result name parameters {                      \
    static const auto function =                                                      \
        reinterpret_cast<decltype(&name)>(llamesh::ops::cuda::function_named(#name)); \
    return function arguments;                                                        \
  }

SEND_ON(std::size_t, cudnnGetVersion, (), ())
SEND_ON(const char*, cudnnGetErrorString, (cudnnStatus_t status), (status))
SEND_ON(void, cudnnGetLastErrorString, (char* text, std::size_t size), (text, size))
SEND_ON(cudnnStatus_t, cudnnCreate, (cudnnHandle_t * handle), (handle))
SEND_ON(cudnnStatus_t, cudnnSetStream, (cudnnHandle_t handle, cudaStream_t stream),
        (handle, stream))
SEND_ON(cudnnStatus_t, cudnnGetStream, (cudnnHandle_t handle, cudaStream_t* stream),
        (handle, stream))
SEND_ON(cudnnStatus_t, cudnnBackendCreateDescriptor,
        (cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* made), (type, made))
SEND_ON(cudnnStatus_t, cudnnBackendDestroyDescriptor, (cudnnBackendDescriptor_t descriptor),
        (descriptor))
SEND_ON(cudnnStatus_t, cudnnBackendFinalize, (cudnnBackendDescriptor_t descriptor), (descriptor))
SEND_ON(cudnnStatus_t, cudnnBackendSetAttribute,
        (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t attribute,
         cudnnBackendAttributeType_t type, std::int64_t count, const void* elements),
        (descriptor, attribute, type, count, elements))
SEND_ON(cudnnStatus_t, cudnnBackendGetAttribute,
        (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t attribute,
         cudnnBackendAttributeType_t type, std::int64_t asked, std::int64_t* count, void* elements),
        (descriptor, attribute, type, asked, count, elements))
SEND_ON(cudnnStatus_t, cudnnBackendExecute,
        (cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t variables),
        (handle, plan, variables))

#undef SEND_ON
