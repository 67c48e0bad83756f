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
/// two bounds are blended (Hugging Face's modeling_rope_utils.py).
std::vector<double> rope_frequencies(const Rope& rope, std::int64_t head_dim);

/// Returns the factor on what rotates of queries and keys, yarn's attention_factor.
double rope_magnitude(const Rope& rope);

/// out (P, E) fp32: per position E/2 cosines, then E/2 sines, times rope_magnitude().
void rope_table(const Rope& rope, std::int64_t head_dim, std::span<float> out);

/// The tables of a model's layers in device memory, one for each different Rope.
class RopeTables {
 public:
  RopeTables(device::Stream& stream, const ModelConfig& config, const ModelTraits& traits,
             std::int64_t positions);
  /// Returns the layer's table (P, E), or an empty tensor if it does not rotate.
  Tensor operator[](std::size_t layer) const { return by_layer_[layer]; }

 private:
  std::vector<device::Buffer> buffers_;
  std::vector<Tensor> by_layer_;
};

}  // namespace llamesh::model
