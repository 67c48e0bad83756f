#pragma once

#include <cstdint>
#include <optional>

#include "model/layers/feed_forward.hpp"

/// M tokens, (M', D') this rank's part of the residual stream, F intermediate per rank.
namespace llamesh::model {

/// A layer's feed-forward network: down(f(gate(x)) * up(x)), or without a gate down(f(up(x))).
class Mlp final : public FeedForward {
 public:
  /// `table` has the shapes that this rank holds.
  Mlp(const ParameterTable& table, ModuleId layer, const LayerTraits& traits);

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
  void forward(const BlockContext& ctx, Tensor x, Tensor y) override;
  void recompute(const BlockContext& ctx, Tensor x) override;
  void backward(const BlockContext& ctx, Tensor x, Tensor dy) override;

 private:
  struct Modules {
    ModuleId mlp;
    std::optional<WeightModule> gate_proj;
    WeightModule up_proj, down_proj;
  };
  std::vector<WeightModule> inputs() const;

  Modules ids_;
  ops::Activation activation_;
  std::int64_t intermediate_;  ///< F
  bool keeps_activated_ = false;
  Tensors tensors_;
};

}  // namespace llamesh::model
