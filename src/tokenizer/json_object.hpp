#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace llamesh::tokenizer {

/// A JSON object with its location for messages, e.g. "t.json: pre_tokenizer". Borrowed.
class JsonObject {
 public:
  /// Throws a user error unless `value` is an object.
  JsonObject(std::string where, const nlohmann::json& value);

  const std::string& where() const { return where_; }
  /// Returns the member's location.
  std::string at(std::string_view key) const { return where_ + "." + std::string(key); }
  /// Returns null if the member is missing or null.
  const nlohmann::json* find(std::string_view key) const;
  /// Returns a required member.
  const nlohmann::json& need(std::string_view key) const;
  JsonObject object(std::string_view key) const { return {at(key), need(key)}; }
  std::string text(std::string_view key) const;
  bool flag(std::string_view key) const;
  bool flag(std::string_view key, bool otherwise) const;
  std::int32_t id(std::string_view key) const;
  /// Returns the text in member `type`.
  std::string type() const { return text("type"); }
  const nlohmann::json::array_t& array(std::string_view key) const;
  /// Rejects every member that is not listed.
  void only(std::initializer_list<std::string_view> keys) const;
  /// Rejects a member whose value is not null, "" or false.
  void refuse_if_set(std::initializer_list<std::string_view> keys) const;

 private:
  std::string where_;
  const nlohmann::json* value_;
};

/// Parses a token id: a non-negative integer. Throws a user error that begins with `where`.
std::int32_t to_id(const std::string& where, const nlohmann::json& value);

/// Shortens a text to one line for a message.
std::string shown(std::string_view text);

}  // namespace llamesh::tokenizer
