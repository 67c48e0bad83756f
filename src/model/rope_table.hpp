#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/buffer.hpp"
#include "device/stream.hpp"
#include "model/model_config.hpp"

namespace llamesh::model {

/// Returns the E/2 rotary frequencies theta^(-2i/E), in radians per position. With rope_scaling,
/// long wavelengths are stretched by `factor`, and those between two bounds are blended (Hugging
/// Face's modeling_rope_utils.py).
std::vector<double> rope_frequencies(const ModelConfig& config);

/// Returns the factor on all rotated queries and keys, yarn's attention_factor.
double rope_magnitude(const ModelConfig& config);

/// out (T, E) fp32: per position E/2 cosines, then E/2 sines, times rope_magnitude().
void rope_table(const ModelConfig& config, std::int64_t sequence, std::span<float> out);

/// Returns the table in device memory.
device::Buffer upload_rope_table(device::Stream& stream, const ModelConfig& config,
                                 std::int64_t sequence);

}  // namespace llamesh::model
