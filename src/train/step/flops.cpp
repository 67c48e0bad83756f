#include "train/step/flops.hpp"

namespace llamesh::train {
namespace {

double attention_flops(const model::ModelConfig& c, std::int64_t sequence) {
  return 12.0 * static_cast<double>(c.num_hidden_layers) *
         static_cast<double>(c.num_attention_heads * c.head_dim) * static_cast<double>(sequence);
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
