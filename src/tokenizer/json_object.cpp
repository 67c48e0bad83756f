#include "tokenizer/json_object.hpp"

#include <algorithm>
#include <limits>

#include "core/error.hpp"
#include "core/utf8.hpp"

namespace llamesh::tokenizer {

using nlohmann::json;

std::string shown(std::string_view text) {
  constexpr std::size_t longest = 120;
  const bool cut = text.size() > longest;
  text = text.substr(0, longest);
  text.remove_suffix(cut ? unfinished_utf8(text) : 0);
  std::string out = replace_invalid_utf8(text);
  std::ranges::replace_if(
      out, [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return cut ? out + "..." : out;
}

JsonObject::JsonObject(std::string where, const json& value)
    : where_(std::move(where)), value_(&value) {
  validate(value.is_object(), "{} is {} instead of an object", where_, value.type_name());
}

const json* JsonObject::find(std::string_view key) const {
  const auto found = value_->find(key);
  return found == value_->end() || found->is_null() ? nullptr : &*found;
}

const json& JsonObject::need(std::string_view key) const {
  const json* member = find(key);
  validate(member != nullptr, "{}: '{}' is missing", where_, key);
  return *member;
}

std::string JsonObject::text(std::string_view key) const {
  const json& member = need(key);
  validate(member.is_string(), "expected {} to be a string, got {}", at(key), member.type_name());
  return member.get<std::string>();
}

bool JsonObject::flag(std::string_view key) const {
  const json& member = need(key);
  validate(member.is_boolean(), "{} is {} instead of true or false", at(key), member.type_name());
  return member.get<bool>();
}

bool JsonObject::flag(std::string_view key, bool otherwise) const {
  return find(key) == nullptr ? otherwise : flag(key);
}

std::int32_t to_id(const std::string& where, const json& value) {
  validate(value.is_number_integer(), "{} is {} instead of a token id", where, value.type_name());
  const bool fits = value.is_number_unsigned() &&
                    value.get<std::uint64_t>() < std::numeric_limits<std::int32_t>::max();
  validate(fits, "{}: {} is no token id", where, value.dump());
  return value.get<std::int32_t>();
}

std::int32_t JsonObject::id(std::string_view key) const {
  return to_id(at(key), need(key));
}

const json::array_t& JsonObject::array(std::string_view key) const {
  const json& member = need(key);
  validate(member.is_array(), "{} is {} instead of a list", at(key), member.type_name());
  return member.get_ref<const json::array_t&>();
}

void JsonObject::only(std::initializer_list<std::string_view> keys) const {
  for (const auto& item : value_->items())
    validate(std::ranges::find(keys, item.key()) != keys.end(), "{}: '{}' is not supported", where_,
             shown(item.key()));
}

void JsonObject::refuse_if_set(std::initializer_list<std::string_view> keys) const {
  for (const auto key : keys) {
    const json* member = find(key);
    const bool unset = member == nullptr || *member == json("") || *member == json(false);
    validate(unset, "{}: '{}: {}' is not supported", where_, key,
             shown(unset ? "" : member->dump(-1, ' ', false, json::error_handler_t::replace)));
  }
}

}  // namespace llamesh::tokenizer
