#include "config/key_reader.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <tuple>

#include "config/include.hpp"
#include "core/error.hpp"
#include "core/text.hpp"

namespace llamesh::config {
namespace {

template <class T>
std::optional<T> parse(std::string_view text) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Parses an integer, also as 1e8 if it is integral and exact.
std::optional<std::int64_t> parse_integer(std::string_view text) {
  if (const auto exact = parse<std::int64_t>(text)) return exact;
  const auto value = parse<double>(text);
  if (!value || std::abs(*value) > 0x1p53 || *value != std::trunc(*value)) return std::nullopt;
  return static_cast<std::int64_t>(*value);
}

std::string_view last_part(std::string_view path) {
  return path.substr(path.rfind('.') + 1);
}

}  // namespace

const Node* KeyReader::lookup(std::string_view name) {
  known_.insert(path(name));
  return here_ ? here_->find(name) : nullptr;
}

/// Rejects a null group on the command line, which would drop all of its keys in the file. A group
/// without keys in a file is harmless.
void KeyReader::refuse_reset(std::string_view name) const {
  const Node* node = here_ ? here_->find(name) : nullptr;
  validate(node == nullptr || node->kind != Node::Kind::null || node->where != "command line",
           "command line: {0}=null would reset all keys of the group {0}; set its keys one by one",
           path(name));
}

const Node* KeyReader::enter(std::string_view name) {
  sections_.insert(path(name));
  const Node* node = here_ ? here_->find(name) : nullptr;
  if (node == nullptr || node->kind == Node::Kind::null) return nullptr;
  validate(node->kind == Node::Kind::map, "{}: {}: expected a group of keys, got {}{}", node->where,
           path(name), node->describe(), hint_for_key(path(name)));
  return node;
}

const Node* KeyReader::scalar(std::string_view name, std::string_view expected) {
  const Node* node = lookup(name);
  validate(node == nullptr || node->kind == Node::Kind::scalar, "{}: {}: expected {}, got {}",
           node ? node->where : "", path(name), expected, node ? node->describe() : "");
  return node;
}

bool KeyReader::is_auto(std::string_view name) {
  const Node* node = scalar(name, "an integer or auto");
  return node != nullptr && node->scalar == "auto";
}

std::optional<std::int64_t> KeyReader::integer(std::string_view name, Range range, Range of_type,
                                               std::string_view expected) {
  const Node* node = scalar(name, expected);
  if (node == nullptr) return std::nullopt;
  const auto value = parse_integer(node->scalar);
  validate(value.has_value(), "{}: {}: expected {}, got {}", node->where, path(name), expected,
           node->describe());
  const auto as_double = static_cast<double>(*value);
  validate(range.contains(as_double), "{}: {}: {} is out of range; allowed: {}", node->where,
           path(name), *value, range.describe());
  validate(of_type.contains(as_double), "{}: {}: {} is too large; at most {}", node->where,
           path(name), *value, of_type.high);
  return value;
}

double KeyReader::number(const Node& node, std::string_view name, Range range) const {
  const auto value =
      node.kind == Node::Kind::scalar ? parse<double>(node.scalar) : std::optional<double>();
  validate(value && std::isfinite(*value), "{}: {}: expected a number, got {}", node.where,
           path(name), node.describe());
  validate(range.contains(*value), "{}: {}: {} is out of range; allowed: {}", node.where,
           path(name), *value, range.describe());
  return *value;
}

void KeyReader::key(std::string_view name, double& value, Range range) {
  if (const Node* node = lookup(name)) value = number(*node, name, range);
}

void KeyReader::bytes(std::string_view name, std::int64_t& value) {
  constexpr auto expected = "a number of bytes or a size such as 80GB or 512MiB";
  const Node* node = scalar(name, expected);
  if (node == nullptr) return;
  const auto size = parse_byte_size(node->scalar);
  validate(size.has_value(), "{}: {}: expected {}, got {}", node->where, path(name), expected,
           node->describe());
  value = *size;
}

void KeyReader::key(std::string_view name, bool& value) {
  const Node* node = scalar(name, "true or false");
  if (node == nullptr) return;
  validate(node->scalar == "true" || node->scalar == "false",
           "{}: {}: expected true or false, got {}", node->where, path(name), node->describe());
  value = node->scalar == "true";
}

void KeyReader::key(std::string_view name, std::string& value) {
  if (const Node* node = scalar(name, "a word")) value = node->scalar;
}

std::vector<std::string> KeyReader::words_in(const Node& node, const std::string& path) {
  if (node.kind == Node::Kind::scalar) return {node.scalar};
  validate(node.kind == Node::Kind::list, "{}: {}: expected a list of words, got {}", node.where,
           path, node.describe());
  std::vector<std::string> words;
  for (const Node& item : node.items) {
    validate(item.kind == Node::Kind::scalar,
             "{}: {}: expected a list of words, but it contains {}", item.where, path,
             item.describe());
    words.push_back(item.scalar);
  }
  return words;
}

void KeyReader::key(std::string_view name, std::vector<std::string>& value) {
  if (const Node* node = lookup(name)) value = words_in(*node, path(name));
}

void KeyReader::named_words(std::string_view name, std::vector<train::ValidationSet>& value) {
  const Node* node = lookup(name);
  if (node == nullptr) return;
  value.clear();
  if (node->kind == Node::Kind::null) return;
  validate(node->kind == Node::Kind::map,
           "{}: {}: expected names with their files, as {{NAME: FILES}}, got {}", node->where,
           path(name), node->describe());
  for (const auto& [key, files] : node->members)
    value.push_back({key, words_in(files, fmt::format("{}.{}", path(name), excerpt(key)))});
}

void KeyReader::automatic(std::string_view name, std::vector<std::int64_t>& value, Range range) {
  const Node* node = lookup(name);
  if (node != nullptr && node->kind == Node::Kind::scalar && node->scalar == "auto")
    value.clear();
  else
    key(name, value, range);
}

void KeyReader::key(std::string_view name, std::vector<std::int64_t>& value, Range range) {
  const Node* node = lookup(name);
  if (node == nullptr) return;
  validate(node->kind == Node::Kind::list, "{}: {}: expected a list of integers, got {}",
           node->where, path(name), node->describe());
  value.clear();
  for (const Node& item : node->items) {
    const auto number = item.kind == Node::Kind::scalar ? parse_integer(item.scalar) : std::nullopt;
    validate(number.has_value(), "{}: {}: expected a list of integers, but it contains {}",
             item.where, path(name), item.describe());
    validate(range.contains(static_cast<double>(*number)),
             "{}: {}: {} is out of range; allowed: {}", item.where, path(name), *number,
             range.describe());
    value.push_back(*number);
  }
}

void KeyReader::key(std::string_view name, std::vector<double>& value, Range range) {
  const Node* node = lookup(name);
  if (node == nullptr) return;
  validate(node->kind == Node::Kind::list, "{}: {}: expected a list of numbers, got {}",
           node->where, path(name), node->describe());
  value.clear();
  for (const Node& item : node->items) value.push_back(number(item, name, range));
}

void KeyReader::key(std::string_view name, std::optional<sharding::Spec>& value) {
  const Node* node = lookup(name);
  if (node == nullptr) return;
  value.reset();
  if (node->kind != Node::Kind::null) value = spec_of(*node);
}

void KeyReader::key(std::string_view name, sharding::ReshardAfterForward& value) {
  using enum sharding::ReshardAfterForward;
  constexpr auto expected = "auto, true, false or a number of ranks";
  const Node* node = scalar(name, expected);
  if (node == nullptr) return;
  const auto& word = node->scalar;
  if (word == "auto" || word == "true" || word == "false")
    value = word == "auto" ? by_strategy : word == "true" ? yes : no;
  else if (const auto ranks = integer(name, at_least(1), from_to(1, 2147483647), expected))
    value = static_cast<sharding::ReshardAfterForward>(*ranks);
}

bool KeyReader::is_list_of_groups(const Node& node, std::string_view name) const {
  const auto is_group = [](const Node& item) { return item.kind == Node::Kind::map; };
  if (node.kind != Node::Kind::list || std::ranges::none_of(node.items, is_group)) return false;
  const auto stranger = std::ranges::find_if_not(node.items, is_group);
  validate(stranger == node.items.end(), "{}: {}: expected only groups of keys in the list, got {}",
           stranger == node.items.end() ? "" : stranger->where, path(name),
           stranger == node.items.end() ? "" : stranger->describe());
  return true;
}

std::optional<std::size_t> KeyReader::word(std::string_view name,
                                           const std::vector<std::string_view>& words) {
  const std::string allowed = fmt::format("{}", fmt::join(words, ", "));
  const Node* node = scalar(name, "one of " + allowed);
  if (node == nullptr) return std::nullopt;
  const auto found = std::ranges::find(words, node->scalar);
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  const auto ours = value_for(node->scalar);
  const bool known = std::ranges::find(words, ours) != words.end();
  fail(ExitCode::bad_input, "{}: {}: unknown value {}; allowed: {}{}", node->where, path(name),
       node->describe(), allowed,
       known ? fmt::format("; did you mean '{}'?", ours)
             : did_you_mean(node->scalar, {words.begin(), words.end()}));
}

std::pair<double, double> KeyReader::pair_of(const Node& node, std::string_view name,
                                             Range range) const {
  validate(node.kind == Node::Kind::list && node.items.size() == 2,
           "{}: {}: expected a list of two numbers, got {}", node.where, path(name),
           node.kind == Node::Kind::list ? fmt::format("{}", node.items.size()) : node.describe());
  return {number(node.items[0], name, range), number(node.items[1], name, range)};
}

void KeyReader::pair(std::string_view name, double& first, double& second, Range range) {
  if (const Node* node = lookup(name)) std::tie(first, second) = pair_of(*node, name, range);
}

void KeyReader::pairs(std::string_view name, std::vector<std::pair<double, double>>& value,
                      Range range) {
  const Node* node = lookup(name);
  if (node == nullptr) return;
  validate(node->kind == Node::Kind::list && !node->items.empty(),
           "{}: {}: expected a list of pairs of numbers, got {}", node->where, path(name),
           node->kind == Node::Kind::list ? "none" : node->describe());
  value.clear();
  for (const Node& item : node->items) {
    const auto pair = pair_of(item, name, range);
    validate(value.empty() || value.back().first < pair.first,
             "{}: {}: {} follows {}; sizes must ascend", item.where, path(name), pair.first,
             value.empty() ? 0 : value.back().first);
    value.push_back(pair);
  }
}

void KeyReader::finish() const {
  refuse_unknown(*root_, "");
}

void KeyReader::refuse_unknown(const Node& node, const std::string& prefix) const {
  for (const auto& [name, value] : node.members) {
    const std::string full = prefix + name;
    const bool nested_name = name.find('.') != std::string::npos;
    if (!nested_name && known_.contains(full)) continue;
    if (value.kind == Node::Kind::map && !value.members.empty()) {
      refuse_unknown(value, full + '.');
      if (!nested_name && sections_.contains(full)) continue;
    }
    if (!nested_name && sections_.contains(full)) continue;
    validate(!known_.contains(full), "{}: key '{}' is written with dots; nest it: {}: {{{}: ...}}",
             value.where, excerpt(full), full.substr(0, full.rfind('.')), last_part(full));
    const auto hint = hint_for_key(full);
    fail(ExitCode::bad_input, "{}: unknown key '{}'{}", value.where, excerpt(full),
         hint.empty() ? did_you_mean(full, {known_.begin(), known_.end()}) : hint);
  }
}

}  // namespace llamesh::config
