#pragma once

#include <filesystem>
#include <string>

#include "model/description/model_config.hpp"

namespace llamesh::model {

/// Reads the model from a config.json for one of families(), or with such a language model among
/// other parts, as written by transformers 4 and 5. Features that the family does not compute
/// (other activations, other RoPE scalings, quantized weights but fp8, dropout) are a user error
/// that names them. `name` is the file's name in messages. The result is resolved.
ModelConfig parse_config_json(const std::string& text, const std::string& name);

/// Reads the model from FOLDER/config.json.
ModelConfig read_config_json(const std::filesystem::path& folder);

/// Writes the model as Hugging Face's config.json.
std::string to_config_json(const ModelConfig& config);

/// Writes a config.json for a folder with weights in `dtype` (float32, bfloat16, float16). Keys in
/// `base` (another config.json's text, or empty) that do not define the model's shape are kept,
/// e.g. special token ids and the maximum position. If it has other parts, they are left out.
std::string to_config_json(const ModelConfig& config, const std::string& dtype,
                           const std::string& base);
/// Likewise, for a folder that keeps them.
std::string to_whole_config_json(const ModelConfig& config, const std::string& dtype,
                                 const std::string& base);

}  // namespace llamesh::model
