#pragma once

#include "model/block.hpp"

/// M tokens, (M', D') this rank's part of the residual stream, H heads, K kv heads, E head dim, F
/// intermediate; H, K and F are per rank.
namespace llamesh::model {

/// Attention heads of one rank: H, K, and the elements E of each.
struct AttentionHeads {
  std::int64_t q, kv, dim;
};

/// Llama's decoder layer: middle = x + o(attention(rope(qkv(norm(x)))));
/// y = middle + down(swiglu(gate_up(norm(middle)))). A linear layer adds the bias that the table
/// has.
class TransformerBlock final : public Block {
 public:
  /// `table` has the shapes that this rank holds; heads are of `head_dim` elements.
  TransformerBlock(const ParameterTable& table, std::int64_t head_dim, std::size_t index);

  void plan(ArenaAllocator& plan, const PassShape& pass, ActivationCheckpointing checkpointing,
            const Block* last) override;
  Tensor input() const override { return tensors_.input; }
  std::int64_t kv_columns() const override { return heads_.kv * heads_.dim; }
  Residual forward(const BlockContext& ctx, const Residual& in) override;
  void backward(const BlockContext& ctx) override;

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
  struct Modules {
    ModuleId layer, self_attn, mlp;
    WeightModule q_proj, k_proj, v_proj, o_proj;
    WeightModule gate_proj, up_proj, down_proj;
    WeightModule input_norm, post_attention_norm;
  };
  static Modules find_modules(const ParameterTable& table, ModuleId layer);
  void plan_kept(ArenaAllocator& plan, const PassShape& pass);
  void plan_backward(ArenaAllocator& plan, const PassShape& pass);
  void attention_forward(const BlockContext& ctx);
  void attend(const BlockContext& ctx);
  void mlp_forward(const BlockContext& ctx);
  void attention_backward(const BlockContext& ctx);
  void mlp_backward(const BlockContext& ctx);
  void recompute(const BlockContext& backward);

  Modules ids_;
  AttentionHeads heads_;
  std::int64_t intermediate_;  ///< F
  std::size_t index_;
  ActivationCheckpointing checkpointing_ = ActivationCheckpointing::none;
  Tensors tensors_;
};

/// Family::make_block for families that have this layer.
std::unique_ptr<Block> make_transformer_block(const ModelConfig& config,
                                              const ParameterTable& table, std::size_t index);

}  // namespace llamesh::model
