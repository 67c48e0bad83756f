#pragma once

#include <cstdint>
#include <optional>

#include "model/layers/block.hpp"
#include "model/layers/latent_projection.hpp"
#include "model/layers/linear.hpp"
#include "ops/calls.hpp"

/// M tokens, (M', D') this rank's part of the residual stream, H heads, K kv heads, E dims in a
/// query or key and V in a value; M, H and K are per rank.
namespace llamesh::model {

/// One rank's attention heads: H, K, and the elements E and V in each.
struct AttentionHeads {
  std::int64_t q, kv, dim, value_dim;
};

/// A layer's self-attention: o(attention(q, k, v)) with q, k, v = qkv(x), or by latents. Queries
/// and keys are normalized if the table has q_norm and k_norm, and rotated if the layer has a Rope.
class Attention {
 public:
  /// `table` has the shapes that this rank holds.
  Attention(const ModelConfig& config, const ParameterTable& table, ModuleId layer,
            const LayerTraits& traits, std::size_t index);

  struct Tensors {
    // Kept from the forward to the backward pass.
    Tensor qkv;          ///< (M, H E + K E + K V), q and k rotated unless norms come first
    Tensor q_norm_rms;   ///< (M, H) or (M) fp32, 1 / root mean square; empty without q_norm
    Tensor k_norm_rms;   ///< (M, K) or (M) fp32
    Tensor out;          ///< (M, H V)
    Tensor log_sum_exp;  ///< (B, H, T) fp32
    Tensor normed_qk;    ///< (M, (H + K) E), q and k as they are compared; empty without q_norm
    // Shared by all layers in turn.
    Tensor row_sums;   ///< (t, 2 M) fp32, if t ranks divide what is normalized
    Tensor d_out;      ///< (M, H V)
    Tensor d_qkv;      ///< (M, H E + K E + K V)
    Tensor d_softmax;  ///< (B, H, T) fp32
  };
  const Tensors& tensors() const { return tensors_; }
  CacheColumns cache_columns() const;
  std::int64_t qkv_columns() const {
    return (heads_.q + heads_.kv) * heads_.dim + heads_.kv * heads_.value_dim;
  }

  /// Starts from another layer's tensors, of which this one replaces those that it keeps.
  void share(const Attention& other) {
    tensors_ = other.tensors_;
    if (latent_) latent_->share(*other.latent_);
  }
  void plan_kept(ArenaAllocator& plan, const PassShape& pass,
                 ActivationCheckpointing checkpointing);
  void plan_shared(ArenaAllocator& plan, const PassShape& pass);

  /// y (M', D') = the attention's output for x (M', D'); without y, computes what the backward pass
  /// needs.
  void forward(const BlockContext& ctx, Tensor x, Tensor y);
  /// Recomputes normed_qk from qkv, or the latents' norms.
  void recompute_normed(const BlockContext& ctx);
  /// ctx.delta = x's gradient from y's gradient dy (M', D').
  void backward(const BlockContext& ctx, Tensor x, Tensor dy);

 private:
  struct Modules {
    ModuleId attention;
    std::optional<WeightModule> q_proj, k_proj, v_proj;  ///< unless there are latents
    WeightModule o_proj;
    std::optional<WeightModule> q_norm, k_norm;
  };
  /// q, k and v as column slices.
  struct Slices {
    Tensor q, k, v;
  };
  Slices slices(const Tensor& qkv) const;
  Slices attended() const;
  void rotate(const BlockContext& ctx, const Tensor& qk, ops::Rotation rotation) const;
  void rotate(const BlockContext& ctx, const Tensor& heads, const Tensor& cos_sin,
              ops::Rotation rotation) const;
  KeysValues project(const BlockContext& ctx, const Tensor& x);
  ops::AttentionShape shape(const BlockContext& ctx) const;
  ops::AttentionCall call(const BlockContext& ctx, const KeysValues& all) const;
  template <class SumUp>
  Tensor gathered_sums(const BlockContext& ctx, SumUp sum_up) const;
  void normalize(const BlockContext& ctx);
  void normalize_backward(const BlockContext& ctx, const Slices& d);
  bool attend_cached(const BlockContext& ctx, const KeysValues& mine);
  void attend(const BlockContext& ctx, const KeysValues& all);
  ops::AttentionSinks sinks(const BlockContext& ctx) const;
  void attend_backward(const BlockContext& ctx, const WholeAndMine& dy);

  Modules ids_;
  std::optional<LatentProjection> latent_;
  std::optional<ParameterId> sinks_;
  AttentionHeads heads_;
  std::int64_t window_;
  float score_divisor_;
  float softcap_;
  bool rotates_;
  bool rotates_before_norm_;
  bool norms_projections_;  ///< q_norm and k_norm span all heads, of all tensor ranks
  std::size_t index_;
  Tensors tensors_;
  /// From a forward pass for recomputation to the backward pass, which follows it: all ranks' keys
  /// and values.
  std::optional<KeysValues> recomputed_;
};

}  // namespace llamesh::model
