#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace llamesh::tokenizer {

/// An object of a JSON file with its location for messages, e.g. "t.json: pre_tokenizer". Borrowed.
class JsonObject {
 public:
  /// Throws a user error unless `value` is an object.
  JsonObject(std::string where, const nlohmann::json& value);

  const std::string& where() const { return where_; }
  /// The member's location.
  std::string at(std::string_view key) const { return where_ + "." + std::string(key); }
  /// Null where the member is missing or null.
  const nlohmann::json* find(std::string_view key) const;
  /// The member, which must be there.
  const nlohmann::json& need(std::string_view key) const;
  JsonObject object(std::string_view key) const { return {at(key), need(key)}; }
  std::string text(std::string_view key) const;
  bool flag(std::string_view key) const;
  bool flag(std::string_view key, bool otherwise) const;
  std::int32_t id(std::string_view key) const;
  /// Text of the member `type`.
  std::string type() const { return text("type"); }
  const nlohmann::json::array_t& array(std::string_view key) const;
  /// Refuses every member that is not named.
  void only(std::initializer_list<std::string_view> keys) const;
  /// Refuses a member that has a value other than null, "" and false.
  void refuse_if_set(std::initializer_list<std::string_view> keys) const;

 private:
  std::string where_;
  const nlohmann::json* value_;
};

/// A token id: an integer that is not negative. Throws a user error that begins with `where`.
std::int32_t to_id(const std::string& where, const nlohmann::json& value);

/// A text shortened for a message, on one line.
std::string shown(std::string_view text);

}  // namespace llamesh::tokenizer
