#include "model/config_json.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/json.hpp"
#include "model/config_keys.hpp"
#include "model/family.hpp"
#include "model/lora.hpp"

namespace llamesh::model {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* lora_key = "llamesh_lora";  // in checkpoints only

/// Returns the family of a config.json: by `architectures`, or by `model_type` without that.
const Family& family_of(const ConfigKeys& keys) {
  const auto type = keys.text("model_type");
  const auto* architectures = keys.find("architectures");
  const auto found = std::ranges::find_if(families(), [&](const Family* family) {
    if (architectures == nullptr) return family->name == type;
    return *architectures == Json::array({family->architecture}) &&
           (type.empty() || family->name == type);
  });
  if (found != families().end()) return **found;
  std::vector<std::string_view> known;
  for (const auto* family : families()) known.push_back(family->architecture);
  fail(ExitCode::bad_input, "{}: architectures is {} and model_type {}; llamesh trains {}",
       keys.name(), keys.shown("architectures"), keys.shown("model_type"), fmt::join(known, ", "));
}

}  // namespace

ModelConfig parse_config_json(const std::string& text, const std::string& name) {
  const Json json = parse_json_object(text, name);
  const ConfigKeys keys(json, name);
  const auto& family = family_of(keys);
  validate(!keys.has("quantization_config"),
           "{}: quantization_config is set; llamesh reads F32, BF16 and F16 weights only", name);
  ModelConfig c;
  c.family = family.name;
  family.read_config(keys, c);
  if (keys.has(lora_key)) c.lora = parse_adapter_config(keys.object(lora_key));
  try {
    return c.resolved();
  } catch (const Error& error) {
    fail(error.code(), "{}: {}", name, error.what());
  }
}

ModelConfig read_config_json(const std::filesystem::path& folder) {
  const auto path = folder / "config.json";
  return parse_config_json(read_file(path, std::int64_t{1} << 20U), path.string());
}

std::string to_config_json(const ModelConfig& c, const std::string& dtype,
                           const std::string& base) {
  Json json = base.empty() ? Json::object() : parse_json_object(base, "config.json");
  for (const auto* key :
       {"rope_parameters", "rope_scaling", "layer_types", "dtype", "torch_dtype", lora_key})
    json.erase(key);
  const auto& family = family_named(c.family);
  json["architectures"] = {family.architecture};
  json["model_type"] = family.name;
  family.write_config(c, json);
  if (c.lora) json[lora_key] = to_adapter_config(*c.lora);
  if (!dtype.empty()) json["torch_dtype"] = dtype;
  return json.dump(2);
}

std::string to_config_json(const ModelConfig& config) {
  return to_config_json(config, "", "");
}

}  // namespace llamesh::model
