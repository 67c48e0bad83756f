#include "train/step/flops.hpp"

namespace llamesh::train {
namespace {

/// Returns the keys that count for each query of a layer: T, or with a window W < T twice those
/// that it sees on average, W (2 - W / T).
double counted_keys(std::int64_t window, std::int64_t sequence) {
  const auto T = static_cast<double>(sequence), W = static_cast<double>(window);
  return window == 0 || window >= sequence ? T : W * (2 - W / T);
}

double attention_flops(const model::ModelConfig& c, const model::ParameterTable& table,
                       std::int64_t sequence) {
  double keys = 0;  // a third for the forward pass
  for (std::size_t i = 0; std::cmp_less(i, c.num_hidden_layers); ++i)
    keys += counted_keys(c.window(i), sequence) / (table.has_backward(i) ? 1 : 3);
  return 12.0 * static_cast<double>(c.num_attention_heads * c.head_dim) * keys;
}

}  // namespace

double matmul_flops_per_token(const model::ParameterTable& table) {
  double products = 0;
  for (std::size_t i = 0; i < table.parameters.size(); ++i) {
    const auto id = static_cast<model::ParameterId>(i);
    const auto& parameter = table[id];
    const bool is_head = id == table.lm_head.weight;
    if (!table.multiplies(id)) continue;
    const bool has_backward = is_head || parameter.module >= table.backward_end();
    const int count = 1 + (has_backward ? 1 : 0) + (parameter.frozen ? 0 : 1);
    products += static_cast<double>(count) * static_cast<double>(parameter.active_numel());
  }
  return 2 * products;
}

double flops_per_token(const model::ModelConfig& config, const model::ParameterTable& table,
                       std::int64_t sequence) {
  return matmul_flops_per_token(table) + attention_flops(config, table, sequence);
}

double causal_flops_per_token(const model::ModelConfig& config, const model::ParameterTable& table,
                              std::int64_t sequence) {
  return matmul_flops_per_token(table) + attention_flops(config, table, sequence) / 2;
}

}  // namespace llamesh::train
