#pragma once

#include <cstdint>
#include <optional>

#include "model/layers/feed_forward.hpp"
#include "model/layers/linear.hpp"

/// M tokens, (M', D') this rank's part of the residual stream, F intermediate per rank.
namespace llamesh::model {

/// A layer's feed-forward network: down(f(gate(x)) * up(x)), or without a gate down(f(up(x))).
class Mlp final : public FeedForward {
 public:
  /// `table` has the shapes that this rank holds.
  Mlp(const ParameterTable& table, ModuleId mlp, const LayerTraits& traits);

  struct Tensors {
    // Kept from the forward to the backward pass.
    Tensor up;         ///< (M, 2 F) gate and up, or (M, F); the backward pass overwrites it with
                       ///< its gradient
    Tensor activated;  ///< (M, F)
    // Shared by all layers in turn.
    Tensor d_activated;  ///< (M, F)
  };
  const Tensors& tensors() const { return tensors_; }

  void share(const FeedForward& other) override {
    tensors_ = dynamic_cast<const Mlp&>(other).tensors_;
  }
  void plan_kept(ArenaAllocator& plan, const PassShape& pass,
                 ActivationCheckpointing checkpointing) override;
  void plan_shared(ArenaAllocator& plan, const PassShape& pass) override;
  NormReader reader() const override { return NormReader::linear; }
  void forward(const BlockContext& ctx, Tensor x, Tensor y) override;
  void recompute(const BlockContext& ctx, Tensor x) override;
  void backward(const BlockContext& ctx, Tensor x, Tensor dy) override;

  // For an MLP beside experts, which gather its tokens x (M, D) and reduce its outputs. It has no
  // biases there.

  /// y (M, D) = this rank's part of the output.
  void forward_part(const BlockContext& ctx, Tensor x, Tensor y);
  void recompute_part(const BlockContext& ctx, Tensor x);
  /// dx (M, D) = this rank's part of x's gradient from dy (M, D), which dx may alias. Calls
  /// between() once `up` holds its gradient.
  template <class Between>
  void backward_part(const BlockContext& ctx, Tensor x, Tensor dy, Tensor dx, Between between) {
    const UnshardGuard guard(ctx.weights, ids_.mlp, Pass::backward);
    {
      LinearBackward down(ctx, {ids_.down_proj});
      down.input(tensors_.d_activated, dy);
      activate_backward(ctx);
      between();
      down.weights(dy, tensors_.activated);
    }
    LinearBackward up(ctx, inputs());
    up.input(dx, tensors_.up);
    up.weights(tensors_.up, x);
  }

 private:
  struct Modules {
    ModuleId mlp;
    std::optional<WeightModule> gate_proj;
    WeightModule up_proj, down_proj;
    std::optional<ModuleId> act_fn;          ///< an activation with coefficients,
    ParameterId alpha_p = {}, alpha_n = {};  ///< these
  };
  std::vector<WeightModule> inputs() const;
  ops::XieluCall xielu_call(const BlockContext& ctx) const;
  void activate(const BlockContext& ctx);
  void activate_backward(const BlockContext& ctx);

  Modules ids_;
  ops::Activation activation_;
  std::int64_t intermediate_;  ///< F
  bool keeps_activated_ = false;
  Tensors tensors_;
};

}  // namespace llamesh::model
