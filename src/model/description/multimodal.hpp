#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string_view>
#include <vector>

#include "model/description/config_keys.hpp"

/// Models that take images as well as text. Their folders describe a language model among other
/// parts, under text_config; llamesh trains that one.
namespace llamesh::model {

/// Returns the language model's config.json as it would be in its own folder; nothing unless
/// `keys` are those of a known model with several parts.
std::optional<nlohmann::ordered_json> language_part(const ConfigKeys& keys);

/// Returns a folder's config.json with another one for its language model.
nlohmann::ordered_json with_language_part(nlohmann::ordered_json whole,
                                          const nlohmann::ordered_json& language);

/// Returns the known values of `architectures`.
std::vector<std::string_view> multimodal_architectures();

}  // namespace llamesh::model
