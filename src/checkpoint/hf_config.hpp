#pragma once

#include <string>

#include "model/llama_config.hpp"

namespace llamesh::checkpoint {

/// The model as Hugging Face's config.json of a LlamaForCausalLM.
std::string to_config_json(const model::LlamaConfig& config);

}  // namespace llamesh::checkpoint
