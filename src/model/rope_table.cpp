#include "model/rope_table.hpp"

#include <cmath>
#include <numbers>

#include "device/device.hpp"

namespace llamesh::model {
namespace {

double scaled(double frequency, const RopeScaling& s) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto context = static_cast<double>(s.original_max_position_embeddings);
  if (wavelength < context / s.high_freq_factor) return frequency;
  if (wavelength > context / s.low_freq_factor) return frequency / s.factor;
  const double smooth =
      (context / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - smooth) * frequency / s.factor + smooth * frequency;
}

}  // namespace

std::vector<double> rope_frequencies(const ModelConfig& c) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < c.head_dim / 2; ++i) {
    const double f =
        std::pow(c.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(c.head_dim));
    frequencies.push_back(c.rope_scaling ? scaled(f, *c.rope_scaling) : f);
  }
  return frequencies;
}

void rope_table(const ModelConfig& c, std::int64_t sequence, std::span<float> out) {
  const auto frequencies = rope_frequencies(c);
  const std::size_t half = frequencies.size();
  for (std::size_t t = 0; t < static_cast<std::size_t>(sequence); ++t)
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(t) * frequencies[i];
      out[t * 2 * half + i] = static_cast<float>(std::cos(angle));
      out[t * 2 * half + half + i] = static_cast<float>(std::sin(angle));
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
