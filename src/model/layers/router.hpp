#pragma once

#include <optional>

#include "model/layers/block.hpp"
#include "ops/calls.hpp"

/// M tokens, N experts of which a token takes k.
namespace llamesh::model {

/// A layer's choice of experts for each token. Its logits are fp32. Tensor ranks route the same
/// tokens, each with the same result.
class Router {
 public:
  /// `moe` is the module that the router and the experts belong to.
  Router(const ModelConfig& config, const ParameterTable& table, ModuleId moe,
         const LayerNames& names);

  struct Tensors {
    // Kept from the forward to the backward pass.
    ops::RouteCall routing;  ///< without its logits
    // Shared by all layers in turn.
    Tensor logits;    ///< (M, N) fp32
    Tensor dweights;  ///< (M, k) fp32
    Tensor dlogits;   ///< (M, N)
  };
  const Tensors& tensors() const { return tensors_; }
  std::int64_t experts() const { return count_; }
  std::int64_t experts_per_token() const { return per_token_; }

  void share(const Router& other) { tensors_ = other.tensors_; }
  void plan_kept(ArenaAllocator& plan, std::int64_t tokens);
  void plan_shared(ArenaAllocator& plan, const PassShape& pass);

  /// Chooses the experts for x (M, D). The caller has entered the parent module.
  void route(const BlockContext& ctx, Tensor x);
  /// dx (M, D) += x's gradient by way of the router, from dweights.
  void backward(const BlockContext& ctx, Tensor x, Tensor dx);

 private:
  WeightModule router_;
  std::optional<ParameterId> selection_bias_;
  std::int64_t count_, per_token_;  ///< N, k
  std::int64_t index_;              ///< among the model's routers
  bool has_z_loss_;
  Tensors tensors_;
};

}  // namespace llamesh::model
