#pragma once

#include <filesystem>
#include <string>

#include "model/llama_config.hpp"

namespace llamesh::checkpoint {

/// Reads the model from a config.json: a LlamaForCausalLM for Llama 2, 3, 3.1 or 3.2, as written by
/// transformers 4 and 5. Unsupported features (biases, other activations, other RoPE scalings,
/// quantized weights, dropout) are a user error that names them. `name` is the file's name in
/// messages. The result is resolved.
model::LlamaConfig parse_config_json(const std::string& text, const std::string& name);

/// Reads the model from FOLDER/config.json.
model::LlamaConfig read_hf_config(const std::filesystem::path& folder);

/// Writes the model as Hugging Face's config.json for a LlamaForCausalLM.
std::string to_config_json(const model::LlamaConfig& config);

/// Writes a config.json for a folder with weights in `dtype` (float32, bfloat16, float16). Keys in
/// `base` (another config.json's text, or empty) that do not define the model's shape are kept,
/// e.g. special token ids and the maximum position.
std::string to_config_json(const model::LlamaConfig& config, const std::string& dtype,
                           const std::string& base);

}  // namespace llamesh::checkpoint
