#pragma once

#include <cstdint>

#include "model/llama_config.hpp"
#include "model/parameters.hpp"

namespace llamesh::train {

/// Floating-point operations of the matmuls of forward and backward for one token: 6 N, N the
/// parameters that take part in them. No step does fewer.
double matmul_flops_per_token(const model::ParameterTable& table);

/// Floating-point operations of forward and backward for one token at sequence length T:
/// 6 N + 12 L (H E) T (Chowdhery et al., PaLM, appendix B).
double flops_per_token(const model::LlamaConfig& config, const model::ParameterTable& table,
                       std::int64_t sequence);

/// The same with the causal half of attention counted only: 6 N + 6 L (H E) T.
double causal_flops_per_token(const model::LlamaConfig& config, const model::ParameterTable& table,
                              std::int64_t sequence);

}  // namespace llamesh::train
