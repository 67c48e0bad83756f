#include "model/layers/rope_table.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "device/device.hpp"

namespace llamesh::model {
namespace {

/// Returns the frequencies' base, which grows with texts behind the original context (Hugging
/// Face's _compute_dynamic_ntk_parameters).
double base_of(const Rope& rope, std::int64_t dims, std::int64_t positions) {
  if (!rope.scaling || rope.scaling->rope_type != RopeType::dynamic) return rope.theta;
  const RopeScaling& s = *rope.scaling;
  const auto dim = static_cast<double>(dims);
  const auto contexts =
      static_cast<double>(positions) / static_cast<double>(s.original_max_position_embeddings);
  const double growth = 1 + s.factor * (std::max(contexts, 1.0) - 1);
  return rope.theta * std::pow(growth, dim / (dim - 2));
}

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

/// Divides frequency i by its own factor, which depends on how long the texts are.
double by_length(double frequency, std::int64_t i, const RopeScaling& s, std::int64_t positions) {
  const bool is_long = positions > s.original_max_position_embeddings;
  return frequency / (is_long ? s.long_factor : s.short_factor)[static_cast<std::size_t>(i)];
}

double scaled(double frequency, std::int64_t i, const Rope& rope, std::int64_t dims,
              std::int64_t positions) {
  if (!rope.scaling) return frequency;
  switch (rope.scaling->rope_type) {
    case RopeType::linear:
      return frequency / rope.scaling->factor;
    case RopeType::llama3:
      return by_wavelength(frequency, *rope.scaling);
    case RopeType::yarn:
      return by_rotations(frequency, i, rope, dims);
    case RopeType::longrope:
      return by_length(frequency, i, *rope.scaling, positions);
    case RopeType::dynamic:  // in the base
      break;
  }
  return frequency;
}

}  // namespace

std::vector<double> rope_frequencies(const Rope& rope, std::int64_t head_dim,
                                     std::int64_t positions) {
  const auto dims = rope.dims > 0 ? rope.dims : head_dim;
  const double base = base_of(rope, dims, positions);
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < dims / 2; ++i) {
    const double f = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dims));
    frequencies.push_back(scaled(f, i, rope, dims, positions));
  }
  frequencies.resize(static_cast<std::size_t>(head_dim / 2), 0.0);
  return frequencies;
}

double rope_magnitude(const Rope& rope) {
  if (!rope.scaling) return 1;
  const RopeScaling& s = *rope.scaling;
  const bool longrope = s.rope_type == RopeType::longrope;
  if (s.rope_type != RopeType::yarn && !longrope) return 1;
  if (s.attention_factor > 0) return s.attention_factor;
  if (s.factor <= 1) return 1;
  const auto context = static_cast<double>(s.original_max_position_embeddings);
  return longrope ? std::sqrt(1 + std::log(s.factor) / std::log(context))
                  : 0.1 * std::log(s.factor) + 1;
}

namespace {

bool scales_queries(const Rope& rope) {
  return rope.scaling && rope.scaling->llama_4_scaling_beta > 0;
}

/// Returns the factor on the query in a position (Llama 4's temperature).
double query_scale(const Rope& rope, std::int64_t position) {
  const auto& s = *rope.scaling;
  const auto contexts = position / s.original_max_position_embeddings;
  return 1 + s.llama_4_scaling_beta * std::log1p(static_cast<double>(contexts));
}

}  // namespace

void rope_table(const Rope& rope, std::int64_t head_dim, std::span<float> out, RopeSide side) {
  const auto positions = std::ssize(out) / head_dim;
  const auto frequencies = rope_frequencies(rope, head_dim, positions);
  const double magnitude = rope_magnitude(rope);
  const bool scales = side == RopeSide::queries && scales_queries(rope);
  const std::size_t half = frequencies.size();
  for (std::int64_t t = 0; t < positions; ++t) {
    auto* row = out.subspan(static_cast<std::size_t>(t * head_dim)).data();
    const double scale = scales ? query_scale(rope, t) : 1;
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(t) * frequencies[i];
      const double length = scale * (frequencies[i] == 0 ? 1 : magnitude);
      row[i] = static_cast<float>(length * std::cos(angle));
      row[half + i] = static_cast<float>(length * std::sin(angle));
    }
  }
}

namespace {

device::Buffer upload_table(device::Stream& stream, const Rope& rope, std::int64_t positions,
                            std::int64_t head_dim, RopeSide side) {
  const device::ScopedMemoryTag use(device::MemoryUse::activations);
  device::Buffer buffer(positions * head_dim * size_of(DType::f32));
  std::vector<float> on_host(static_cast<std::size_t>(positions * head_dim));
  if (device::kind() != device::Kind::simulated)  // it would take half of the planning time
    rope_table(rope, head_dim, on_host, side);
  device::upload(stream, buffer.tensor(DType::f32, {positions, head_dim}), on_host.data());
  return buffer;
}

}  // namespace

RopeTables::RopeTables(device::Stream& stream, const ModelConfig& config, const ModelTraits& traits,
                       std::int64_t positions) {
  std::vector<std::pair<Rope, LayerRope>> made;
  const auto upload = [&](const Rope& rope, RopeSide side) {
    buffers_.push_back(upload_table(stream, rope, positions, config.head_dim, side));
    return buffers_.back().tensor(DType::f32, {positions, config.head_dim});
  };
  for (const auto& layer : traits.layers) {
    if (!layer.rope) {
      by_layer_.emplace_back();
      continue;
    }
    auto found = std::ranges::find(made, *layer.rope, &std::pair<Rope, LayerRope>::first);
    if (found == made.end()) {
      const Tensor keys = upload(*layer.rope, RopeSide::keys);
      const Tensor queries =
          scales_queries(*layer.rope) ? upload(*layer.rope, RopeSide::queries) : keys;
      found = made.insert(found, {*layer.rope, {queries, keys}});
    }
    by_layer_.push_back(found->second);
  }
}

}  // namespace llamesh::model
