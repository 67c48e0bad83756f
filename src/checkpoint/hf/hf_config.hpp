#pragma once

#include <filesystem>
#include <string>

#include "model/llama_config.hpp"

namespace llamesh::checkpoint {

/// The model of a config.json: a LlamaForCausalLM of Llama 2, 3, 3.1 or 3.2, as transformers 4 and
/// 5 write it. Features that llamesh lacks (biases, other activations, other RoPE scalings,
/// quantized weights, dropout) are a user error that names them. `name` is the file's name for
/// messages. The result is resolved.
model::LlamaConfig parse_config_json(const std::string& text, const std::string& name);

/// The same from FOLDER/config.json.
model::LlamaConfig read_hf_config(const std::filesystem::path& folder);

/// The model as Hugging Face's config.json of a LlamaForCausalLM.
std::string to_config_json(const model::LlamaConfig& config);

/// The same for a folder of weights of type `dtype` (float32, bfloat16, float16). Keys of `base`
/// (the text of another config.json, or empty) other than the model's shape are kept: the ids of
/// special tokens, the maximum position.
std::string to_config_json(const model::LlamaConfig& config, const std::string& dtype,
                           const std::string& base);

}  // namespace llamesh::checkpoint
