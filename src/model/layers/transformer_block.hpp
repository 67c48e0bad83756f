#pragma once

#include "model/layers/attention.hpp"
#include "model/layers/block.hpp"
#include "model/layers/feed_forward.hpp"
#include "model/layers/norm.hpp"

/// (M', D') is this rank's part of the residual stream.
namespace llamesh::model {

/// The norms around a layer's attention or MLP, f: y = x + after(f(before(x))). Either norm may be
/// missing.
class ResidualBranch {
 public:
  ResidualBranch(const ParameterTable& table, ModuleId layer, std::string_view norm_before,
                 std::string_view norm_after);

  struct Tensors {
    Tensor stream;  ///< (M', D') x
    Tensor input;   ///< (M', D') before(x), or `stream`
    Tensor output;  ///< (M', D') f's output; empty without a norm after it
    NormStatistics before, after;
  };
  const Tensors& tensors() const { return tensors_; }
  bool has_norm_after() const { return after_.has_value(); }

  void share(const ResidualBranch& other) { tensors_ = other.tensors_; }
  /// `keeps_stream`: whether the layer keeps x with full checkpointing, too.
  void plan_kept(ArenaAllocator& plan, const PassShape& pass, ActivationCheckpointing checkpointing,
                 bool keeps_stream);

  /// Adds up the residual stream and returns f's input.
  Tensor enter(const BlockContext& ctx, const Residual& in, NormReader reader);
  /// Returns where f writes its output.
  Tensor output(const BlockContext& ctx) const { return after_ ? tensors_.output : ctx.delta; }
  /// Returns y, pending, with its delta in ctx.delta.
  Residual leave(const BlockContext& ctx);
  /// Returns the gradient of f's output, from y's in ctx.d_residual. May use ctx.delta for it.
  Tensor leave_backward(const BlockContext& ctx);
  /// Adds the gradient of f's input, in ctx.delta, to ctx.d_residual.
  void enter_backward(const BlockContext& ctx);

 private:
  std::optional<WeightModule> before_, after_;
  Tensors tensors_;
};

/// A decoder layer: attention and MLP or experts, each with norms before or after it, or both
/// behind the same norm (LayerTraits::parallel). What a family's table has (biases, norms on
/// queries and keys) is computed.
class TransformerBlock final : public Block {
 public:
  /// `table` has the shapes that this rank holds.
  TransformerBlock(const ModelConfig& config, const ParameterTable& table,
                   const LayerTraits& traits, std::size_t index);

  void plan(ArenaAllocator& plan, const PassShape& pass, ActivationCheckpointing checkpointing,
            const Block* last, const Block* alike) override;
  Tensor input() const override { return attention_branch_.tensors().stream; }
  CacheColumns cache_columns() const override { return attention_.cache_columns(); }
  Residual forward(const BlockContext& ctx, const Residual& in) override;
  void backward(const BlockContext& ctx) override;

  const Attention& attention() const { return attention_; }
  const FeedForward& feed_forward() const { return *feed_forward_; }
  const ResidualBranch& attention_branch() const { return attention_branch_; }
  const ResidualBranch& mlp_branch() const { return mlp_branch_; }
  ActivationCheckpointing checkpointing() const { return checkpointing_; }

 private:
  void plan_feed_forward(ArenaAllocator& plan, const PassShape& pass, const Block* alike);
  Residual forward_parallel(const BlockContext& ctx, const Residual& in);
  void backward_parallel(const BlockContext& ctx);
  void recompute(const BlockContext& backward);
  void recompute_parallel(const BlockContext& ctx, const Tensor& x);

  ModuleId layer_;
  bool parallel_;
  ResidualBranch attention_branch_;
  Attention attention_;
  ResidualBranch mlp_branch_;
  std::unique_ptr<FeedForward> feed_forward_;
  Tensor beside_;  ///< (M', D') attention's output, or the MLP's gradient; shared by all layers
  ActivationCheckpointing checkpointing_ = ActivationCheckpointing::none;
};

}  // namespace llamesh::model
