#pragma once

#include <optional>

#include "model/layers/mlp.hpp"

/// M tokens.
namespace llamesh::model {

/// An MLP that all tokens take beside the experts that a router chooses (Dai et al. 2024). A gate,
/// if it has one (Qwen2-MoE), scales its output for x by sigmoid(g . x). Its tokens are gathered,
/// and what it writes is this tensor rank's part.
class SharedExpert {
 public:
  /// `moe` is the module that it and the experts belong to. `table` has the shapes that this rank
  /// holds.
  SharedExpert(const ParameterTable& table, ModuleId moe, const LayerTraits& traits);

  void share(const SharedExpert& other);
  void plan_kept(ArenaAllocator& plan, const PassShape& pass,
                 ActivationCheckpointing checkpointing);
  void plan_shared(ArenaAllocator& plan, const PassShape& pass);

  /// y (M, D) = its part of the output for x (M, D). The caller has entered `moe`, as for the
  /// others.
  void forward(const BlockContext& ctx, Tensor x, Tensor y);
  /// Recomputes from x what the backward pass needs and does not provide.
  void recompute(const BlockContext& ctx, Tensor x);
  /// dx (M, D) = its part of x's gradient from dy (M, D), which dx may alias.
  void backward(const BlockContext& ctx, Tensor x, Tensor dy, Tensor dx);

 private:
  struct Tensors {
    Tensor gates;            ///< (M, 1) fp32, kept from the forward to the backward pass
    Tensor dgates, dlogits;  ///< (M, 1), shared by all layers in turn; the first is fp32
  };
  void compute_gates(const BlockContext& ctx, Tensor x, Tensor y);

  Mlp mlp_;
  std::optional<WeightModule> gate_;  ///< (1, D)
  Tensors tensors_;
};

}  // namespace llamesh::model
