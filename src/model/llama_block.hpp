#pragma once

#include "model/block.hpp"

/// M tokens, (M', D') this rank's part of the residual stream, H heads, K kv heads, E head dim, F
/// intermediate; H, K and F are per rank.
namespace llamesh::model {

/// Llama's decoder layer: middle = x + o(attention(rope(qkv(norm(x)))));
/// y = middle + down(swiglu(gate_up(norm(middle)))).
class LlamaBlock final : public Block {
 public:
  /// `ids` and `config` are borrowed.
  LlamaBlock(const LlamaConfig& config, const LayerIds& ids, std::size_t index)
      : config_(config), ids_(ids), index_(index) {}

  void plan(Planner& plan, const PassShape& pass, ActivationCheckpointing checkpointing,
            const Block* last) override;
  Tensor input() const override { return tensors_.input; }
  Residual forward(const BlockContext& x, const Residual& in) override;
  void backward(const BlockContext& x) override;

  struct Tensors {
    // Kept from the forward to the backward pass.
    Tensor input;          ///< (M', D') residual stream on input
    Tensor input_rms;      ///< (M') fp32, 1 / root mean square of input
    Tensor normed_input;   ///< (M', D')
    Tensor qkv;            ///< (M, (H + 2 K) E), q and k rotated
    Tensor attention;      ///< (M, H E)
    Tensor log_sum_exp;    ///< (B, H, T) fp32
    Tensor middle;         ///< (M', D') residual stream between attention and MLP
    Tensor middle_rms;     ///< (M') fp32
    Tensor normed_middle;  ///< (M', D')
    Tensor gate_up;        ///< (M, 2 F); the backward pass overwrites it with its gradient
    Tensor swiglu;         ///< (M, F)
    // Backward pass only, shared by all layers in turn.
    Tensor d_swiglu;     ///< (M, F)
    Tensor d_attention;  ///< (M, H E)
    Tensor d_qkv;        ///< (M, (H + 2 K) E)
    Tensor d_softmax;    ///< (B, H, T) fp32
  };
  const Tensors& tensors() const { return tensors_; }
  ActivationCheckpointing checkpointing() const { return checkpointing_; }

 private:
  void plan_kept(Planner& plan, const PassShape& pass);
  void plan_backward(Planner& plan, const PassShape& pass);
  void attention_forward(const BlockContext& x);
  void attend(const BlockContext& x);
  void mlp_forward(const BlockContext& x);
  void attention_backward(const BlockContext& x);
  void mlp_backward(const BlockContext& x);
  void recompute(const BlockContext& backward);

  const LlamaConfig& config_;
  const LayerIds& ids_;
  std::size_t index_;
  ActivationCheckpointing checkpointing_ = ActivationCheckpointing::none;
  Tensors tensors_;
};

}  // namespace llamesh::model
