#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor.hpp"
#include "device/buffer.hpp"
#include "device/stream.hpp"
#include "model/description/traits.hpp"

/// E is the head dim, P a number of positions.
namespace llamesh::model {

/// Returns the E/2 rotary frequencies, in radians per position: theta^(-2i/r) for the r dims that
/// rotate, then zeros. With scaling, long wavelengths are stretched by `factor`, and those between
/// two bounds are blended; with longrope, each has its own factor, which depends on the length of
/// the texts, `positions` (Hugging Face's modeling_rope_utils.py).
std::vector<double> rope_frequencies(const Rope& rope, std::int64_t head_dim,
                                     std::int64_t positions = 0);

/// Returns attention_factor, by which the rotating dims of queries and keys are multiplied.
double rope_magnitude(const Rope& rope);

/// The side that a table rotates.
enum class RopeSide : std::uint8_t { queries, keys };

/// out (P, E) fp32: per position E/2 cosines, then E/2 sines, times rope_magnitude(), and for
/// queries times what llama_4_scaling_beta asks for.
void rope_table(const Rope& rope, std::int64_t head_dim, std::span<float> out,
                RopeSide side = RopeSide::keys);

/// A layer's tables (P, E), which are often the same; empty if it does not rotate.
struct LayerRope {
  Tensor queries, keys;
  bool same() const { return queries.data() == keys.data(); }
};

/// The tables of a model's layers in device memory, one for each different Rope and side.
class RopeTables {
 public:
  RopeTables(device::Stream& stream, const ModelConfig& config, const ModelTraits& traits,
             std::int64_t positions);
  const LayerRope& operator[](std::size_t layer) const { return by_layer_[layer]; }

 private:
  std::vector<device::Buffer> buffers_;
  std::vector<LayerRope> by_layer_;
};

}  // namespace llamesh::model
