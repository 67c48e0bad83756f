#pragma once

#include <memory>

#include "model/layers/block.hpp"
#include "model/layers/norm.hpp"

namespace llamesh::model {

/// The second half of a layer, after attention: an MLP (mlp.hpp), or experts (experts.hpp). (M',
/// D') is this rank's part of the residual stream.
class FeedForward {
 public:
  virtual ~FeedForward() = default;
  /// Starts from the tensors of another layer of the same kind, of which this one replaces those
  /// that it keeps.
  virtual void share(const FeedForward& other) = 0;
  virtual void plan_kept(ArenaAllocator& plan, const PassShape& pass,
                         ActivationCheckpointing checkpointing) = 0;
  virtual void plan_shared(ArenaAllocator& plan, const PassShape& pass) = 0;

  /// Returns what reads x first, in forward() and recompute().
  virtual NormReader reader() const = 0;
  /// y (M', D') = the network's output for x (M', D').
  virtual void forward(const BlockContext& ctx, Tensor x, Tensor y) = 0;
  /// Recomputes from x what the backward pass needs and does not provide.
  virtual void recompute(const BlockContext& ctx, Tensor x) = 0;
  /// ctx.delta = x's gradient from y's gradient dy (M', D').
  virtual void backward(const BlockContext& ctx, Tensor x, Tensor dy) = 0;
};

/// Makes experts if the layer's table has a router, otherwise an MLP. `table` has the shapes that
/// this rank holds.
std::unique_ptr<FeedForward> make_feed_forward(const ModelConfig& config,
                                               const ParameterTable& table, ModuleId layer,
                                               const LayerTraits& traits);

}  // namespace llamesh::model
