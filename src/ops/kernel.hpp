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
  constexpr Kernel(Function* cpu, Function* simulated, Function* gpu = nullptr)
      : cpu_(cpu), simulated_(simulated), gpu_(gpu) {}

  Result operator()(Stream& stream, Arguments... arguments) const {
    return of(stream.kind())(stream, arguments...);
  }

 private:
  Function& of(device::Kind kind) const {
    return *(kind == device::Kind::cpu ? cpu_ : kind == device::Kind::cuda ? gpu_ : simulated_);
  }

  Function* cpu_;
  Function* simulated_;
  Function* gpu_;
};

}  // namespace llamesh::ops
