#pragma once

#include <exception>

#include "core/accumulate.hpp"
#include "core/tensor.hpp"
#include "model/parameters.hpp"

namespace llamesh::model {

enum class Pass {
  evaluate,   ///< a forward pass without a backward pass
  forward,    ///< of training: the weights are needed again
  recompute,  ///< a forward pass inside the backward pass: the backward pass proper follows at once
  backward,
};

/// Where a parameter's gradient goes, and whether it is added to what is there.
struct GradientSlot {
  Tensor tensor;
  Accumulate accumulate;
};

/// How the model comes by its weights. The model says which module it enters and leaves; whoever
/// implements this decides where the numbers are in between (sharding::Fsdp gathers them from all
/// ranks, LocalWeights has them). The model itself knows of no rank.
class Weights {
 public:
  virtual ~Weights() = default;
  /// From here to leave() the module's parameters are readable. Modules nest.
  virtual void enter(ModuleId module, Pass pass) = 0;
  /// In the backward pass: the gradients of the module's parameters are complete. Waits for nothing
  /// and throws for bugs only.
  virtual void leave(ModuleId module, Pass pass) = 0;
  /// The numbers of a parameter of an entered module, in the compute dtype.
  virtual Tensor parameter(ParameterId id) = 0;
  /// Asked once for every use of a parameter; the asker writes as the slot says.
  virtual GradientSlot gradient(ParameterId id) = 0;
  /// In place of gradient(), for a parameter that this backward pass has not used (an expert
  /// without tokens): it contributes zero.
  virtual void no_gradient(ParameterId id) = 0;
};

/// Enters a module, and leaves it on destruction. When an exception unwinds it, the module is not
/// left: the pass is lost, and its gradients must not count as complete.
class UnshardGuard {
 public:
  UnshardGuard(Weights& weights, ModuleId module, Pass pass)
      : weights_(weights), module_(module), pass_(pass) {
    weights_.enter(module_, pass_);
  }
  ~UnshardGuard() {
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
