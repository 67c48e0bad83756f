#pragma once

#include <nlohmann/json.hpp>

#include "model/config_keys.hpp"
#include "model/model_config.hpp"

namespace llamesh::model {

/// Reads the RoPE parameters: rope_parameters in transformers 5, or rope_theta and rope_scaling in
/// older versions.
void read_rope(const ConfigKeys& keys, ModelConfig& config);
/// Adds rope_theta and rope_scaling, which every version of transformers reads.
void write_rope(const ModelConfig& config, nlohmann::ordered_json& json);
/// Throws a user error if the parameters do not fit together.
void check_rope(const ModelConfig& config);

}  // namespace llamesh::model
