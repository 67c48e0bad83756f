#pragma once

#include <cstdint>
#include <optional>

#include "core/dtype.hpp"
#include "sharding/spec.hpp"
#include "sharding/strategy.hpp"
#include "sharding/wrap_policy.hpp"

namespace llamesh::sharding {

/// What of a rank's shards is in host memory, where the optimizer's step then is computed.
enum class Offload : std::uint8_t {
  none,
  optimizer,  ///< master weights, gradients and moments; the device has weights in the compute
              ///< dtype
  all,        ///< the weights too: they come to the device for each gather
};

/// Whether bf16 weights are kept beside their fp32 masters, written by the optimizer, rather than
/// cast at each gather. Where parameters are fp32, or shards are in host memory, there is no
/// choice.
enum class KeepBf16Weights : std::uint8_t {
  automatic,  ///< where they fit: train::decide_bf16_weights(); until then as `no`
  yes,
  no,
};

/// `sharding:` of the inputs.
struct ShardingOptions {
  Strategy strategy = Strategy::hybrid_shard;
  /// Where weights are stored, in place of the strategy's placements; mesh and resharding stay the
  /// strategy's.
  std::optional<Spec> spec = {};
  WrapOptions wrap;
  ReshardAfterForward reshard_after_forward = ReshardAfterForward::by_strategy;
  int prefetch = 1;                 ///< units gathered ahead of the one in use
  std::int64_t prefetch_limit = 0;  ///< most bytes of the units gathered ahead; 0: no limit
  Offload offload = Offload::none;
  KeepBf16Weights keep_bf16_weights = KeepBf16Weights::automatic;
};

/// How the ranks of the tensor axis hold the residual stream (M, D).
enum class ResidualLayout : std::uint8_t {
  sequence,  ///< M / t rows each: gathered before, and reduce-scattered after, attention and MLP
  whole,     ///< all of it on each: all-reduced after attention and MLP
  hidden,    ///< D / t columns each; as sequence, and norms sum over the ranks
};

/// `tensor:` of the inputs.
struct TensorOptions {
  ResidualLayout residual = ResidualLayout::sequence;
};

/// `precision:` of the inputs. Master weights and optimizer state are fp32 always.
struct PrecisionOptions {
  DType parameters = DType::f32;  ///< of gathered parameters and activations
  DType reduce =
      DType::f32;  ///< of a unit's gradients until they leave the rank; sums over ranks are fp32
};

}  // namespace llamesh::sharding
