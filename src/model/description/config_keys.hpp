#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/description/key_list.hpp"
#include "model/description/model_config.hpp"

namespace llamesh::model {

/// Keys of an object in config.json, which is untrusted. Every fault is a user error that begins
/// with the object's name and the key. A null key counts as absent. Borrows the object, and
/// remembers which keys were asked for.
class ConfigKeys {
 public:
  using Json = nlohmann::ordered_json;

  ConfigKeys(const Json& object, std::string name) : json_(object), name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  bool has(const char* key) const { return find(key) != nullptr; }
  bool is_null(const char* key) const {
    const auto found = json_.find(key);
    return find(key) == nullptr && found != json_.end();
  }
  /// Returns null if the key is absent.
  const Json* find(const char* key) const;
  /// Returns a size: an integer from `min` to 2^24.
  std::int64_t size(const char* key, std::int64_t min = 1) const;
  /// Returns a size, or `otherwise` if the key is absent.
  std::int64_t size_or(const char* key, std::int64_t otherwise) const {
    return has(key) ? size(key) : otherwise;
  }
  /// Returns a finite number above 0.
  double number(const char* key) const;
  double number(const char* key, double otherwise) const {
    return has(key) ? number(key) : otherwise;
  }
  /// Returns a finite number, 0 or above, or `otherwise` if the key is absent.
  double number_from_0(const char* key, double otherwise) const;
  /// Returns a list of finite numbers above 0; an absent key is empty.
  std::vector<double> numbers(const char* key) const;
  /// Returns a list of integers, of which any may be out of range; an absent key is empty.
  std::vector<std::int64_t> integers(const char* key) const;
  /// Returns a list of strings; an absent key is empty.
  std::vector<std::string> texts(const char* key) const;
  /// Returns true or false, or `otherwise` if the key is absent.
  bool flag(const char* key, bool otherwise = false) const;
  /// Returns a string; an absent key is empty.
  std::string text(const char* key) const;
  /// Returns the object under a key, named for messages.
  ConfigKeys object(const char* key) const;
  /// Formats a value for messages; an absent key is "missing".
  std::string shown(const char* key) const;
  /// Returns the one of two names for the same key that is present; `name` if neither is. Refuses
  /// two different values.
  const char* either(const char* name, const char* other) const;
  /// Takes keys whose values leave the model as it is.
  void ignore(std::initializer_list<const char*> keys) const {
    known_.insert(keys.begin(), keys.end());
  }
  /// Refuses a key that was not asked for, unless it is among `harmless`. Keys that only say that
  /// something is off (false, 0, empty) are not refused, but logged once. Call it last.
  void refuse_unknown(std::span<const std::string_view> harmless = {}) const;

 private:
  const Json& get(const char* key) const;

  const Json& json_;
  std::string name_;
  mutable std::set<std::string, std::less<>> known_;
};

/// Returns the highest dropout under `names`, which is `otherwise` where a key is absent.
double read_dropout(const ConfigKeys& json, std::span<const char* const> names, double otherwise);
/// Sets all `names` to the dropout, unless it is already the highest under them.
void write_dropout(double dropout, std::span<const char* const> names, double otherwise,
                   nlohmann::ordered_json& json);

/// Reads those of `names` that config.json has by name (ModelKey::in_json). Absent keys leave the
/// config as it is.
void read_keys(const ConfigKeys& json, const KeyList& names, ModelConfig& config);
/// Writes them.
void write_keys(const ModelConfig& config, const KeyList& names, nlohmann::ordered_json& json);

}  // namespace llamesh::model
