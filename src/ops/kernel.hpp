#pragma once

#include "device/stream.hpp"

namespace llamesh::ops {

using device::Stream;

/// A kernel, called like a function. It runs on its stream's backend.
template <class Signature>
class Kernel;

template <class Result, class... Arguments>
class Kernel<Result(Stream&, Arguments...)> {
 public:
  /// Signature that each backend defines.
  using Function = Result(Stream&, Arguments...);

  /// `gpu` is null in a build without CUDA, which has no GPU streams.
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
