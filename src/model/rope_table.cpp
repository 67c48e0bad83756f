#include "model/rope_table.hpp"

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
double by_rotations(double frequency, std::int64_t i, const ModelConfig& c) {
  const RopeScaling& s = *c.rope_scaling;
  const auto dim = static_cast<double>(c.head_dim);
  const auto context = static_cast<double>(s.original_max_position_embeddings);
  const auto dim_with = [&](double rotations) {
    return dim * std::log(context / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(c.rope_theta));
  };
  double low = dim_with(s.beta_fast), high = dim_with(s.beta_slow);
  if (s.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
  return ramp * frequency / s.factor + (1 - ramp) * frequency;
}

double scaled(double frequency, std::int64_t i, const ModelConfig& c) {
  if (!c.rope_scaling) return frequency;
  switch (c.rope_scaling->rope_type) {
    case RopeType::linear:
      return frequency / c.rope_scaling->factor;
    case RopeType::llama3:
      return by_wavelength(frequency, *c.rope_scaling);
    case RopeType::yarn:
      return by_rotations(frequency, i, c);
  }
  return frequency;
}

}  // namespace

std::vector<double> rope_frequencies(const ModelConfig& c) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < c.head_dim / 2; ++i) {
    const double f =
        std::pow(c.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(c.head_dim));
    frequencies.push_back(scaled(f, i, c));
  }
  return frequencies;
}

double rope_magnitude(const ModelConfig& c) {
  if (!c.rope_scaling || c.rope_scaling->rope_type != RopeType::yarn) return 1;
  const RopeScaling& s = *c.rope_scaling;
  if (s.attention_factor > 0) return s.attention_factor;
  return s.factor <= 1 ? 1 : 0.1 * std::log(s.factor) + 1;
}

void rope_table(const ModelConfig& c, std::int64_t sequence, std::span<float> out) {
  const auto frequencies = rope_frequencies(c);
  const double magnitude = rope_magnitude(c);
  const std::size_t half = frequencies.size();
  for (std::size_t t = 0; t < static_cast<std::size_t>(sequence); ++t)
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(t) * frequencies[i];
      out[t * 2 * half + i] = static_cast<float>(magnitude * std::cos(angle));
      out[t * 2 * half + half + i] = static_cast<float>(magnitude * std::sin(angle));
    }
}

device::Buffer upload_rope_table(device::Stream& stream, const ModelConfig& config,
                                 std::int64_t sequence) {
  const device::ScopedMemoryTag use(device::MemoryUse::activations);
  device::Buffer buffer(sequence * config.head_dim * size_of(DType::f32));
  std::vector<float> on_host(static_cast<std::size_t>(sequence * config.head_dim));
  if (device::kind() != device::Kind::simulated)  // it would take half of the planning time
    rope_table(config, sequence, on_host);
  device::upload(stream, buffer.tensor(DType::f32, {sequence, config.head_dim}), on_host.data());
  return buffer;
}

}  // namespace llamesh::model
