#pragma once

#include <exception>

#include "core/tensor.hpp"
#include "model/description/parameters.hpp"

namespace llamesh::model {

enum class Pass {
  evaluate,   ///< a forward pass without a backward pass
  forward,    ///< in training: the weights are needed again
  recompute,  ///< a forward pass within the backward pass, which follows at once
  backward,
};

/// A gradient's destination and write mode.
struct GradientSlot {
  Tensor tensor;  ///< empty for a frozen parameter, whose gradient is not computed
  Accumulate accumulate;
};

/// Source of a model's weights. The model announces which module it enters and leaves; an
/// implementation decides where the data is in between (sharding::Fsdp gathers it from all ranks,
/// LocalWeights holds it). The model itself knows nothing about ranks.
class Weights {
 public:
  virtual ~Weights() = default;
  /// Makes the module's parameters readable until leave(). Modules nest.
  virtual void enter(ModuleId module, Pass pass) = 0;
  /// In the backward pass, marks the module's gradients as complete. Does not wait. Throws if a
  /// peer has failed.
  virtual void leave(ModuleId module, Pass pass) = 0;
  /// Returns a parameter in an entered module, in the compute dtype; or a linear layer's weight as
  /// e4m3 numbers, which have scales().
  virtual Tensor parameter(ParameterId id) = 0;
  /// Returns a parameter's scales, (rows) fp32, if it has e4m3 numbers.
  virtual Tensor scales(ParameterId /*id*/) { return {}; }
  /// Returns the slot for one use of a parameter; the caller writes as the slot says, or not at all
  /// if the slot is empty.
  virtual GradientSlot gradient(ParameterId id) = 0;
  /// Replaces gradient() for a parameter that this backward pass has not used (an expert without
  /// tokens): contributes zero.
  virtual void no_gradient(ParameterId id) = 0;
};

/// Scope in which a module is entered. If an exception unwinds it, the module is not left: the pass
/// is lost, and its gradients must not be treated as complete. Leaving may throw: it queues a
/// collective, which fails if a peer has.
class UnshardGuard {
 public:
  UnshardGuard(Weights& weights, ModuleId module, Pass pass)
      : weights_(weights), module_(module), pass_(pass) {
    weights_.enter(module_, pass_);
  }
  ~UnshardGuard() noexcept(false) {
    if (std::uncaught_exceptions() == exceptions_) weights_.leave(module_, pass_);
  }
  UnshardGuard(const UnshardGuard&) = delete;
  UnshardGuard& operator=(const UnshardGuard&) = delete;

 private:
  Weights& weights_;
  ModuleId module_;
  Pass pass_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace llamesh::model
