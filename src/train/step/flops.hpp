#pragma once

#include <cstdint>

#include "model/model_config.hpp"
#include "model/parameters.hpp"

namespace llamesh::train {

/// Returns the matmul FLOPs per token, forward and backward: 6 N, where N counts the parameters
/// used in matmuls. No step does fewer. A frozen parameter counts 4, without its own gradient, and
/// 2 below the lowest trained parameter, where no backward pass takes place.
double matmul_flops_per_token(const model::ParameterTable& table);

/// Returns the FLOPs per token, forward and backward, at sequence length T: 6 N + 12 L (H E) T
/// (Chowdhery et al., PaLM, appendix B). A layer with a sliding window W < T counts W (2 - W / T)
/// keys in place of T.
double flops_per_token(const model::ModelConfig& config, const model::ParameterTable& table,
                       std::int64_t sequence);

/// Returns the FLOPs per token with only the causal half of attention: 6 N + 6 L (H E) T.
double causal_flops_per_token(const model::ModelConfig& config, const model::ParameterTable& table,
                              std::int64_t sequence);

}  // namespace llamesh::train
