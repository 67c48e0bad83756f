#pragma once

#include "device/stream.hpp"

namespace llamesh::ops {

using device::Stream;

/// A kernel, called like a function of its signature; it runs on the backend of its stream.
template <class Signature>
class Kernel;

template <class Result, class... Arguments>
class Kernel<Result(Stream&, Arguments...)> {
 public:
  /// What each backend defines.
  using Function = Result(Stream&, Arguments...);

  /// Without CUDA no stream is on a GPU.
  constexpr explicit Kernel(Function* cpu, Function* gpu = nullptr) : cpu_(cpu), gpu_(gpu) {}

  Result operator()(Stream& stream, Arguments... arguments) const {
    return (stream.on_gpu() ? gpu_ : cpu_)(stream, arguments...);
  }

 private:
  Function* cpu_;
  Function* gpu_;
};

}  // namespace llamesh::ops
