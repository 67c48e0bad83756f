#include "train/step/flops.hpp"

namespace llamesh::train {
namespace {

/// Returns the keys that count for each query of a layer: T, or with a window W < T twice those
/// that it sees on average, W (2 - W / T).
double counted_keys(std::int64_t window, std::int64_t sequence) {
  const auto T = static_cast<double>(sequence), W = static_cast<double>(window);
  return window == 0 || window >= sequence ? T : W * (2 - W / T);
}

double attention_flops(const model::ModelConfig& c, std::int64_t sequence) {
  double keys = 0;
  for (std::size_t i = 0; std::cmp_less(i, c.num_hidden_layers); ++i)
    keys += counted_keys(c.window(i), sequence);
  return 12.0 * static_cast<double>(c.num_attention_heads * c.head_dim) * keys;
}

}  // namespace

double matmul_flops_per_token(const model::ParameterTable& table) {
  return 6.0 * static_cast<double>(table.matmul_numel());
}

double flops_per_token(const model::ModelConfig& config, const model::ParameterTable& table,
                       std::int64_t sequence) {
  return matmul_flops_per_token(table) + attention_flops(config, sequence);
}

double causal_flops_per_token(const model::ModelConfig& config, const model::ParameterTable& table,
                              std::int64_t sequence) {
  return matmul_flops_per_token(table) + attention_flops(config, sequence) / 2;
}

}  // namespace llamesh::train
