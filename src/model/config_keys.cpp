#include "model/config_keys.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "core/text.hpp"

namespace llamesh::model {
namespace {

/// Far above every model and far below sizes whose product would overflow.
constexpr std::int64_t max_size = std::int64_t{1} << 24U;

}  // namespace

const ConfigKeys::Json* ConfigKeys::find(const char* key) const {
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

std::vector<std::int64_t> ConfigKeys::integers(const char* key) const {
  const auto* value = find(key);
  if (value == nullptr) return {};
  const auto is_integer = [](const Json& item) { return item.is_number_integer(); };
  validate(value->is_array() && std::ranges::all_of(*value, is_integer),
           "{}: {}: expected a list of integers, got {}", name_, key, shown(key));
  return value->get<std::vector<std::int64_t>>();
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

}  // namespace llamesh::model
