#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/description/config_keys.hpp"

/// Models that take images as well as text. Their folders describe a language model among other
/// parts, under text_config or beside vision_config; llamesh trains that one.
namespace llamesh::model {

/// The language model of a folder that has other parts, too.
struct LanguagePart {
  nlohmann::ordered_json config;  ///< config.json as it would be in its own folder
  std::string name;               ///< for messages
  std::string architecture;       ///< the whole model's
};

/// Returns nothing unless a config.json, named for messages, is of a known model with several
/// parts.
std::optional<LanguagePart> language_part(const nlohmann::ordered_json& whole,
                                          const std::string& name);

/// Throws a user error if the whole model computes something else from text than its language model
/// alone would.
void check_language_model(const LanguagePart& part, const ModelConfig& config);

/// Returns a folder's config.json with another one for its language model. It must have one.
nlohmann::ordered_json with_language_part(nlohmann::ordered_json whole,
                                          nlohmann::ordered_json language);

/// Returns the known values of `architectures`.
std::vector<std::string_view> multimodal_architectures();

}  // namespace llamesh::model
