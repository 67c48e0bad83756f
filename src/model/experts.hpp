#pragma once

#include "model/feed_forward.hpp"
#include "model/router.hpp"

/// M tokens, N experts of which a token takes k, F intermediate of an expert.
namespace llamesh::model {

/// A layer's mixture of experts (Shazeer et al. 2017): y = the sum over the experts e that the
/// router chooses for x of weight_e down_e(silu(gate_e(x)) * up_e(x)). No token is dropped.
class Experts final : public FeedForward {
 public:
  /// `table` has the shapes that this rank holds.
  Experts(const ModelConfig& config, const ParameterTable& table, ModuleId layer,
          const LayerNames& names);

  struct Tensors {
    // Kept from the forward to the backward pass.
    ops::ExpertOrder order;
    Tensor up;         ///< (M k, 2 F) gate and up, in expert order as all rows; the backward pass
                       ///< overwrites it with its gradient
    Tensor activated;  ///< (M k, F)
    // Shared by all layers in turn.
    Tensor rows;         ///< (M k, D) the experts' inputs, outputs or their gradients
    Tensor d_activated;  ///< (M k, F)
  };
  const Tensors& tensors() const { return tensors_; }
  const Router& router() const { return router_; }

  void share(const FeedForward& other) override {
    router_.share(dynamic_cast<const Experts&>(other).router_);
    tensors_ = dynamic_cast<const Experts&>(other).tensors_;
  }
  void plan_kept(ArenaAllocator& plan, const PassShape& pass,
                 ActivationCheckpointing checkpointing) override;
  void plan_shared(ArenaAllocator& plan, const PassShape& pass) override;
  void forward(const BlockContext& ctx, Tensor x, Tensor y) override;
  void recompute(const BlockContext& ctx, Tensor x) override;
  void backward(const BlockContext& ctx, Tensor x, Tensor dy) override;

 private:
  void route(const BlockContext& ctx, Tensor x);
  void gate_and_up(const BlockContext& ctx, Tensor x);
  void down_backward(const BlockContext& ctx, Tensor dy);
  void gate_and_up_backward(const BlockContext& ctx, Tensor x);

  ModuleId moe_, experts_;
  Router router_;
  ParameterId gate_proj_, up_proj_, down_proj_;  ///< (N, F, D), (N, F, D), (N, D, F)
  std::int64_t intermediate_, hidden_;           ///< F, D
  bool keeps_activated_ = false;
  Tensors tensors_;
};

}  // namespace llamesh::model
