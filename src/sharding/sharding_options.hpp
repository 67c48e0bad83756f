#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/dtype.hpp"
#include "core/enum_names.hpp"
#include "model/layers/precision.hpp"
#include "ops/code_format.hpp"
#include "sharding/spec_names.hpp"
#include "sharding/strategy.hpp"
#include "sharding/wrap_policy.hpp"

namespace llamesh::sharding {

/// Shards kept in host memory, where the optimizer step then runs.
enum class Offload : std::uint8_t {
  none,
  optimizer,  ///< master weights, gradients and moments; the device has weights in the compute
              ///< dtype
  all,        ///< the weights too: copied to the device for each gather
};
inline EnumNames<Offload> enum_names(Offload) {
  using enum Offload;
  return {{{"none", none}, {"optimizer", optimizer}, {"all", all}}};
}

/// Option to keep bf16 weights next to the fp32 masters, written by the optimizer, instead of
/// casting at each gather. Has no effect if parameters are fp32 or shards are in host memory.
enum class KeepBf16Weights : std::uint8_t {
  automatic,  ///< if they fit: plan::make_planned_setup(); until then like `no`
  yes,
  no,
};
inline EnumNames<KeepBf16Weights> enum_names(KeepBf16Weights) {
  using enum KeepBf16Weights;
  return {{{"auto", automatic}, {"true", yes}, {"false", no}}};
}

/// When a unit's gradients are reduced over the ranks that share it, in a step with several
/// micro-batches.
enum class Reduce : std::uint8_t {
  automatic,  ///< last with pipeline stages, else each
  each,       ///< after each micro-batch, and added to the shard
  last,       ///< after the last one; until then they add up whole on each rank (FSDP's no_sync)
};
inline EnumNames<Reduce> enum_names(Reduce) {
  using enum Reduce;
  return {{{"auto", automatic}, {"each", each}, {"last", last}}};
}

/// Form in which weights are gathered.
enum class GatherDType : std::uint8_t {
  automatic,  ///< precision.parameters
  int8,       ///< in blocks with a scale each (quantized_collectives.hpp), between nodes
  fp8,        ///< as linear layers multiply them in FP8 (fp8_gather.hpp), likewise
};
inline EnumNames<GatherDType> enum_names(GatherDType) {
  using enum GatherDType;
  return {{{"auto", automatic}, {"int8", int8}, {"fp8", fp8}}};
}

/// Form in which gradients go to other nodes.
enum class ReduceDType : std::uint8_t {
  automatic,  ///< precision.reduce over the ranks that share a unit, fp32 over replicas
  int8,       ///< in blocks with a scale each
  int4,
};
inline EnumNames<ReduceDType> enum_names(ReduceDType) {
  using enum ReduceDType;
  return {{{"auto", automatic}, {"int8", int8}, {"int4", int4}}};
}

/// Returns the codes of int8 or int4.
inline ops::CodeFormat format_of(ReduceDType dtype) {
  return dtype == ReduceDType::int8 ? ops::CodeFormat::int8 : ops::CodeFormat::int4;
}

/// `sharding:` section in the input file.
struct ShardingOptions {
  Strategy strategy = Strategy::hybrid_shard;
  /// Weight placements that replace the strategy's; mesh and resharding still follow the strategy.
  std::optional<Spec> spec = {};
  WrapOptions wrap;
  ReshardAfterForward reshard_after_forward = ReshardAfterForward::by_strategy;
  Reduce reduce = Reduce::automatic;
  GatherDType gather = GatherDType::automatic;
  bool gather_within_node = false;  ///< in this form within nodes too
  ReduceDType reduce_dtype = ReduceDType::automatic;
  bool error_feedback = false;      ///< what that leaves out between replicas is sent the next step
  int prefetch = 1;                 ///< units gathered ahead of the one in use
  std::int64_t prefetch_limit = 0;  ///< maximum bytes gathered ahead; 0: no limit
  Offload offload = Offload::none;
  KeepBf16Weights keep_bf16_weights = KeepBf16Weights::automatic;
};

/// Distribution of the residual stream (M, D) over the tensor axis.
enum class ResidualLayout : std::uint8_t {
  sequence,  ///< M / t rows each: gathered before, and reduce-scattered after, attention and MLP
  whole,     ///< replicated: all-reduced after attention and MLP
  hidden,    ///< D / t columns each; like sequence, and norms sum over the ranks
};
inline EnumNames<ResidualLayout> enum_names(ResidualLayout) {
  using enum ResidualLayout;
  return {{{"sequence", sequence}, {"whole", whole}, {"hidden", hidden}}};
}

/// `tensor:` section in the input file.
struct TensorOptions {
  ResidualLayout residual = ResidualLayout::sequence;
};

/// `precision:` section in the input file. Master weights and optimizer state are always fp32.
struct PrecisionOptions {
  DType parameters = DType::f32;  ///< gathered parameters and activations
  DType reduce =
      DType::f32;  ///< a unit's gradients until they leave the rank; sums over ranks are fp32
  model::LinearPrecision linear = model::LinearPrecision::same;
};
/// Returns "bf16", "bf16 with FP8 linear layers", ...
inline std::string describe(const PrecisionOptions& precision) {
  std::string text(name_of(precision.parameters));
  if (precision.linear != model::LinearPrecision::same) text += " with FP8 linear layers";
  return text;
}

}  // namespace llamesh::sharding
