#pragma once

#include "core/dtype.hpp"
#include "sharding/strategy.hpp"
#include "sharding/wrap_policy.hpp"

namespace llamesh::sharding {

/// `sharding:` of the inputs.
struct ShardingOptions {
  Strategy strategy = Strategy::hybrid_shard;
  WrapOptions wrap;
  int prefetch = 1;  ///< units gathered ahead of the one in use: 0 or 1
};

/// `precision:` of the inputs. Master weights and optimizer state are fp32 always.
struct PrecisionOptions {
  DType parameters = DType::f32;  ///< of gathered parameters and activations
  DType reduce =
      DType::f32;  ///< of a unit's gradients until they leave the rank; sums over ranks are fp32
};

}  // namespace llamesh::sharding
