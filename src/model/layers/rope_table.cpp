#include "model/layers/rope_table.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "device/device.hpp"

namespace llamesh::model {
namespace {

double by_wavelength(double frequency, const RopeScaling& s) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto context = static_cast<double>(s.original_max_position_embeddings);
  if (wavelength < context / s.high_freq_factor) return frequency;
  if (wavelength > context / s.low_freq_factor) return frequency / s.factor;
  const double smooth =
      (context / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - smooth) * frequency / s.factor + smooth * frequency;
}

/// Blends frequencies i that rotate between beta_slow and beta_fast times over the original context
/// (Hugging Face's _compute_yarn_parameters).
double by_rotations(double frequency, std::int64_t i, const Rope& rope, std::int64_t dims) {
  const RopeScaling& s = *rope.scaling;
  const auto dim = static_cast<double>(dims);
  const auto context = static_cast<double>(s.original_max_position_embeddings);
  const auto dim_with = [&](double rotations) {
    return dim * std::log(context / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = dim_with(s.beta_fast), high = dim_with(s.beta_slow);
  if (s.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
  return ramp * frequency / s.factor + (1 - ramp) * frequency;
}

double scaled(double frequency, std::int64_t i, const Rope& rope, std::int64_t dims) {
  if (!rope.scaling) return frequency;
  switch (rope.scaling->rope_type) {
    case RopeType::linear:
      return frequency / rope.scaling->factor;
    case RopeType::llama3:
      return by_wavelength(frequency, *rope.scaling);
    case RopeType::yarn:
      return by_rotations(frequency, i, rope, dims);
  }
  return frequency;
}

}  // namespace

std::vector<double> rope_frequencies(const Rope& rope, std::int64_t head_dim) {
  const auto dims = rope.dims > 0 ? rope.dims : head_dim;
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < dims / 2; ++i) {
    const double f =
        std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(dims));
    frequencies.push_back(scaled(f, i, rope, dims));
  }
  frequencies.resize(static_cast<std::size_t>(head_dim / 2), 0.0);
  return frequencies;
}

double rope_magnitude(const Rope& rope) {
  if (!rope.scaling || rope.scaling->rope_type != RopeType::yarn) return 1;
  const RopeScaling& s = *rope.scaling;
  if (s.attention_factor > 0) return s.attention_factor;
  return s.factor <= 1 ? 1 : 0.1 * std::log(s.factor) + 1;
}

void rope_table(const Rope& rope, std::int64_t head_dim, std::span<float> out) {
  const auto frequencies = rope_frequencies(rope, head_dim);
  const double magnitude = rope_magnitude(rope);
  const std::size_t half = frequencies.size();
  for (std::size_t t = 0; t < out.size() / (2 * half); ++t)
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(t) * frequencies[i];
      const double length = frequencies[i] == 0 ? 1 : magnitude;
      out[t * 2 * half + i] = static_cast<float>(length * std::cos(angle));
      out[t * 2 * half + half + i] = static_cast<float>(length * std::sin(angle));
    }
}

namespace {

device::Buffer upload_table(device::Stream& stream, const Rope& rope, std::int64_t positions,
                            std::int64_t head_dim) {
  const device::ScopedMemoryTag use(device::MemoryUse::activations);
  device::Buffer buffer(positions * head_dim * size_of(DType::f32));
  std::vector<float> on_host(static_cast<std::size_t>(positions * head_dim));
  if (device::kind() != device::Kind::simulated)  // it would take half of the planning time
    rope_table(rope, head_dim, on_host);
  device::upload(stream, buffer.tensor(DType::f32, {positions, head_dim}), on_host.data());
  return buffer;
}

}  // namespace

RopeTables::RopeTables(device::Stream& stream, const ModelConfig& config, const ModelTraits& traits,
                       std::int64_t positions) {
  std::vector<Rope> ropes;
  for (const auto& layer : traits.layers) {
    if (!layer.rope) {
      by_layer_.emplace_back();
      continue;
    }
    const auto found = std::ranges::find(ropes, *layer.rope);
    const auto at = static_cast<std::size_t>(found - ropes.begin());
    if (found == ropes.end()) {
      ropes.push_back(*layer.rope);
      buffers_.push_back(upload_table(stream, *layer.rope, positions, config.head_dim));
    }
    by_layer_.push_back(buffers_[at].tensor(DType::f32, {positions, config.head_dim}));
  }
}

}  // namespace llamesh::model
