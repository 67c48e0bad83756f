#pragma once

#include <cstdint>
#include <optional>

#include "model/layers/block.hpp"
#include "model/layers/norm.hpp"
#include "ops/calls.hpp"

/// M tokens, D hidden; H heads on this rank, with E = N + R dims in queries and keys, of
/// which R have RoPE, and V in values; L dims in the latent for keys and values, L' in the
/// queries'.
namespace llamesh::model {

/// Queries, keys and values in latent attention (DeepSeek-AI 2024, section 2.1): [c, r] = kv_a(x),
/// keys and values = kv_b(norm(c)), with r for all keys' dims that have RoPE, and queries
/// q_b(norm(q_a(x))), or q(x). Tensor ranks divide the heads; each has the latents whole, and their
/// gradients by its own heads.
class LatentProjection {
 public:
  /// `table` has the shapes that this rank holds.
  LatentProjection(const ModelConfig& config, const ParameterTable& table, ModuleId attention,
                   const LayerNames& names);

  struct Tensors {
    // Kept from the forward to the backward pass.
    Tensor q_latent;          ///< (M, L'); empty if queries have no latent
    Tensor kv_latent;         ///< (M, L + R)
    NormStatistics q_rms;     ///< (M)
    NormStatistics kv_rms;    ///< (M)
    Tensor normed_q_latent;   ///< (M, L')
    Tensor normed_kv_latent;  ///< (M, L)
    // Shared by all layers in turn.
    Tensor kv;           ///< (M, H (N + V)), from kv_b, or its gradient
    Tensor d_q_latent;   ///< (M, L')
    Tensor d_kv_latent;  ///< (M, L + R)
    Tensor absorbed;     ///< (M, H (L + R)), only for generation: queries for cached latents
    Tensor mixed;        ///< (M, H L), likewise
  };
  std::int64_t heads() const { return heads_; }
  /// Columns that generation caches per token: norm(c), and r as it is rotated.
  std::int64_t cache_columns() const { return latent_ + rope_; }

  /// Starts from another layer's tensors, of which this one replaces those that it keeps.
  void share(const LatentProjection& other) { tensors_ = other.tensors_; }
  void plan_kept(ArenaAllocator& plan, const PassShape& pass,
                 ActivationCheckpointing checkpointing);
  void plan_shared(ArenaAllocator& plan, const PassShape& pass);

  /// Queries, keys and values as they are before the rotation: q, k (M, H E), v (M, H V) rows.
  struct Heads {
    Tensor q, k, v;
  };
  /// Writes `to` for x (M, D).
  void forward(const BlockContext& ctx, const Tensor& x, const Heads& to);
  /// Recomputes the latents' norms.
  void recompute_normed(const BlockContext& ctx);
  /// ctx.delta = x's gradient from the heads'; also computes the parameters' gradients.
  void backward(const BlockContext& ctx, const TensorParallel::Gathered& x, const Heads& d);

  /// Writes what generation caches: `to` (M, L + R), from the pass's latents and rotated keys.
  void fill_cache(const BlockContext& ctx, const Tensor& to, const Tensor& k) const;
  /// out (M, H V) = attention from rotated q (M, H E) to a cache (positions, L + R). Since a key is
  /// linear in its latent, q . k = (W^T q) . latent: so the heads share one key, and values are
  /// computed after the softmax.
  void attend_cached(const BlockContext& ctx, const Tensor& out, const Tensor& q,
                     const Tensor& cache, const ops::AttentionShape& shape) const;

 private:
  std::int64_t half() const { return (nope_ + rope_) / 2; }
  std::int64_t kv_dim() const { return nope_ + value_; }
  ops::LatentHeads latent_heads(const Tensor& kv_latent, const Tensor& k, const Tensor& v) const;
  void absorb(const BlockContext& ctx, const Tensor& to, const Tensor& q, std::int64_t head) const;
  void norm_latent(const BlockContext& ctx, const WeightModule& by, const Tensor& from,
                   const Tensor& to, const NormStatistics& statistics) const;

  struct Modules {
    WeightModule q_proj;  ///< or q_a
    std::optional<WeightModule> q_norm, q_b_proj;
    WeightModule kv_a_proj, kv_norm, kv_b_proj;
  };
  Modules ids_;
  std::int64_t nope_, rope_, value_, latent_;  ///< N, R, V, L
  std::int64_t heads_ = 0, q_latent_ = 0;      ///< H, L'
  Tensors tensors_;
};

}  // namespace llamesh::model
