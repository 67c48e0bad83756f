#include "model/description/config_keys.hpp"

#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "core/text.hpp"

namespace llamesh::model {
namespace {

/// Far above every model and far below sizes whose product would overflow.
constexpr std::int64_t max_size = std::int64_t{1} << 24U;

/// Returns true for the values by which files say that a feature is not in use.
bool is_off(const ConfigKeys::Json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  if (value.is_structured()) return value.empty();
  return value == false || value == 0;
}

/// Logs a line that every read of the same file would repeat.
void log_once(const std::string& line) {
  static std::set<std::string> logged;
  if (logged.insert(line).second) spdlog::info(line);
}

}  // namespace

const ConfigKeys::Json* ConfigKeys::find(const char* key) const {
  known_.insert(key);
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

const ConfigKeys::Json& ConfigKeys::get(const char* key) const {
  const auto* found = find(key);
  validate(found != nullptr, "{}: {} is missing", name_, key);
  return *found;
}

std::int64_t ConfigKeys::size(const char* key, std::int64_t min) const {
  const auto& value = get(key);
  validate(value.is_number_integer(), "{}: {}: expected an integer, got {}", name_, key,
           shown(key));
  // A number above int64's range is negative after get<>, so it is refused as well.
  const auto number = value.get<std::int64_t>();
  validate(number >= min && number <= max_size, "{}: {} is {}; allowed: {} to {}", name_, key,
           shown(key), min, max_size);
  return number;
}

double ConfigKeys::number(const char* key) const {
  const auto& value = get(key);
  validate(value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() > 0,
           "{}: {}: expected a number above 0, got {}", name_, key, shown(key));
  return value.get<double>();
}

double ConfigKeys::number_from_0(const char* key, double otherwise) const {
  const auto* value = find(key);
  if (value == nullptr) return otherwise;
  return *value == 0 ? 0 : number(key);
}

std::vector<double> ConfigKeys::numbers(const char* key) const {
  const auto* value = find(key);
  if (value == nullptr) return {};
  const auto is_valid = [](const Json& item) {
    return item.is_number() && std::isfinite(item.get<double>()) && item.get<double>() > 0;
  };
  validate(value->is_array() && std::ranges::all_of(*value, is_valid),
           "{}: {}: expected a list of numbers above 0, got {}", name_, key, shown(key));
  return value->get<std::vector<double>>();
}

std::vector<std::int64_t> ConfigKeys::integers(const char* key) const {
  const auto* value = find(key);
  if (value == nullptr) return {};
  const auto is_integer = [](const Json& item) { return item.is_number_integer(); };
  validate(value->is_array() && std::ranges::all_of(*value, is_integer),
           "{}: {}: expected a list of integers, got {}", name_, key, shown(key));
  return value->get<std::vector<std::int64_t>>();
}

std::vector<std::string> ConfigKeys::texts(const char* key) const {
  const auto* value = find(key);
  if (value == nullptr) return {};
  const auto is_text = [](const Json& item) { return item.is_string(); };
  validate(value->is_array() && std::ranges::all_of(*value, is_text),
           "{}: {}: expected a list of strings, got {}", name_, key, shown(key));
  return value->get<std::vector<std::string>>();
}

bool ConfigKeys::flag(const char* key, bool otherwise) const {
  const auto* value = find(key);
  validate(value == nullptr || value->is_boolean(), "{}: {}: expected true or false, got {}", name_,
           key, shown(key));
  return value ? value->get<bool>() : otherwise;
}

std::string ConfigKeys::text(const char* key) const {
  const auto* value = find(key);
  validate(value == nullptr || value->is_string(), "{}: {}: expected a string, got {}", name_, key,
           shown(key));
  return value ? value->get<std::string>() : std::string();
}

ConfigKeys ConfigKeys::object(const char* key) const {
  const auto& value = get(key);
  validate(value.is_object(), "{}: {}: expected an object, got {}", name_, key, shown(key));
  return {value, name_ + ": " + key};
}

std::string ConfigKeys::shown(const char* key) const {
  const auto* value = find(key);
  return value ? excerpt(value->dump(-1, ' ', true, Json::error_handler_t::replace)) : "missing";
}

const char* ConfigKeys::either(const char* name, const char* other) const {
  const auto *a = find(name), *b = find(other);
  validate(a == nullptr || b == nullptr || *a == *b, "{}: {} is {}, but {}, the same key, is {}",
           name_, name, shown(name), other, shown(other));
  return a == nullptr && b != nullptr ? other : name;
}

void ConfigKeys::refuse_unknown(std::span<const std::string_view> harmless) const {
  std::vector<std::string> off;
  for (const auto& [key, value] : json_.items()) {
    if (value.is_null() || known_.contains(key)) continue;
    if (std::ranges::find(harmless, key) != harmless.end()) continue;
    validate(is_off(value),
             "{}: {} is {}, and llamesh does not know this key; remove it if the model is the same "
             "without it",
             name_, excerpt(key),
             excerpt(value.dump(-1, ' ', true, Json::error_handler_t::replace)));
    off.push_back(excerpt(key));
  }
  if (off.empty()) return;
  log_once(fmt::format("{}: llamesh ignores keys that are off: {}", name_,
                       excerpt(fmt::format("{}", fmt::join(off, ", ")))));
}

double read_dropout(const ConfigKeys& json, std::span<const char* const> names, double otherwise) {
  double dropout = 0;
  for (const auto* name : names) dropout = std::max(dropout, json.number_from_0(name, otherwise));
  return dropout;
}

void write_dropout(double dropout, std::span<const char* const> names, double otherwise,
                   nlohmann::ordered_json& json) {
  if (read_dropout(ConfigKeys(json, "config.json"), names, otherwise) == dropout) return;
  for (const auto* name : names) json[name] = dropout;
}

namespace {

void read_key(const ConfigKeys& json, const ModelKey<std::int64_t>& key, std::int64_t& value) {
  value = key.in_json == InJson::needed ? json.size(key.name) : json.size_or(key.name, value);
}
void read_key(const ConfigKeys& json, const ModelKey<double>& key, double& value) {
  value =
      key.range.contains(0) ? json.number_from_0(key.name, value) : json.number(key.name, value);
}
void read_key(const ConfigKeys& json, const ModelKey<bool>& key, bool& value) {
  value = json.flag(key.name, value);
}
void read_key(const ConfigKeys& json, const ModelKey<std::vector<std::int64_t>>& key,
              std::vector<std::int64_t>& value) {
  value = json.integers(key.name);
}

/// Calls visit(key) for those of `names` that config.json has by name.
template <class Visit>
void for_each_key_in_json(const KeyList& names, Visit visit) {
  for_each_model_key([&](const auto& key) {
    if (key.in_json != InJson::special && names.contains(key.name)) visit(key);
  });
}

}  // namespace

void read_keys(const ConfigKeys& json, const KeyList& names, ModelConfig& config) {
  for_each_key_in_json(names, [&]<class T>(const ModelKey<T>& key) {
    if constexpr (requires { read_key(json, key, config.*key.member); })
      read_key(json, key, config.*key.member);
  });
}

void write_keys(const ModelConfig& config, const KeyList& names, nlohmann::ordered_json& json) {
  for_each_key_in_json(names, [&]<class T>(const ModelKey<T>& key) {
    if constexpr (requires { ConfigKeys::Json(config.*key.member); })
      json[key.name] = config.*key.member;
  });
}

}  // namespace llamesh::model
