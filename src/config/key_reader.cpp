#include "config/key_reader.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iterator>
#include <numeric>

#include "core/error.hpp"

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

/// An integer, also as 1e8, as long as it is integral and exact.
std::optional<std::int64_t> parse_integer(std::string_view text) {
  if (const auto exact = parse<std::int64_t>(text)) return exact;
  const auto value = parse<double>(text);
  if (!value || std::abs(*value) > 0x1p53 || *value != std::trunc(*value)) return std::nullopt;
  return static_cast<std::int64_t>(*value);
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

std::string_view last_part(std::string_view path) {
  return path.substr(path.rfind('.') + 1);
}

std::string_view group_of(std::string_view path) {
  const auto dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower;
}

}  // namespace

std::vector<std::string> nearest(std::string_view text,
                                 const std::vector<std::string>& candidates) {
  const std::string word = lower_case(text.substr(0, 200));
  const auto last = last_part(word);
  std::vector<std::string> best;
  std::size_t least = std::string::npos;
  for (const std::string& candidate : candidates) {
    const auto key = last_part(candidate);
    // Shared or missing characters do not count: a third of the rest may be wrong.
    const bool same_group = group_of(word) == group_of(candidate);
    const bool no_group = last.size() == word.size() && key.size() > 4;
    const bool by_key = same_group || no_group;
    std::size_t distance = edit_distance(by_key ? last : word, by_key ? key : candidate);
    // The right key in the wrong group, or in none, counts as one typing error.
    if (last == key) distance = std::min<std::size_t>(distance, 1);
    const auto length = by_key ? last.size() : word.size();
    if (distance > std::max<std::size_t>(2, length / 3) || distance > least) continue;
    if (distance < least) best.clear();
    least = distance;
    best.push_back(candidate);
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr std::size_t most = 3;  // more would not help
  auto near = nearest(word, candidates);
  if (near.empty() || near.size() > most) return "";
  for (auto& one : near) one = fmt::format("'{}'", one);
  return fmt::format("; did you mean {}?", fmt::join(near, " or "));
}

const Node* KeyReader::lookup(std::string_view name) {
  known_.insert(path(name));
  return here_ ? here_->find(name) : nullptr;
}

const Node* KeyReader::enter(std::string_view name) {
  sections_.insert(path(name));
  const Node* node = here_ ? here_->find(name) : nullptr;
  if (node == nullptr || node->kind == Node::Kind::null) return nullptr;
  validate(node->kind == Node::Kind::map, "{}: {}: expected a group of keys, got {}", node->where,
           path(name), node->describe());
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

void KeyReader::key(std::string_view name, std::vector<std::string>& value) {
  const Node* node = lookup(name);
  if (node == nullptr) return;
  if (node->kind == Node::Kind::scalar) {
    value = {node->scalar};
    return;
  }
  validate(node->kind == Node::Kind::list, "{}: {}: expected a list of words, got {}", node->where,
           path(name), node->describe());
  value.clear();
  for (const Node& item : node->items) {
    validate(item.kind == Node::Kind::scalar, "{}: {}: expected a list of words, got {} in it",
             item.where, path(name), item.describe());
    value.push_back(item.scalar);
  }
}

bool KeyReader::is_list_of_groups(const Node& node, std::string_view name) const {
  const auto is_group = [](const Node& item) { return item.kind == Node::Kind::map; };
  if (node.kind != Node::Kind::list || std::ranges::none_of(node.items, is_group)) return false;
  const auto stranger = std::ranges::find_if_not(node.items, is_group);
  validate(stranger == node.items.end(),
           "{}: {}: expected groups of keys throughout the list, got {} in it",
           stranger == node.items.end() ? "" : stranger->where, path(name),
           stranger == node.items.end() ? "" : stranger->describe());
  return true;
}

std::optional<std::size_t> KeyReader::word(std::string_view name,
                                           const std::vector<std::string_view>& words,
                                           const std::vector<std::string_view>& planned) {
  const std::string allowed = fmt::format("{}", fmt::join(words, ", "));
  const Node* node = scalar(name, "one of " + allowed);
  if (node == nullptr) return std::nullopt;
  const auto found = std::ranges::find(words, node->scalar);
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  validate(std::ranges::find(planned, node->scalar) == planned.end(),
           "{}: {}: {} is not implemented; available: {}", node->where, path(name),
           node->describe(), allowed);
  fail(ExitCode::bad_input, "{}: {}: unknown value {}; allowed: {}{}", node->where, path(name),
       node->describe(), allowed, did_you_mean(node->scalar, {words.begin(), words.end()}));
}

void KeyReader::pair(std::string_view name, double& first, double& second, Range range) {
  const Node* node = lookup(name);
  if (node == nullptr) return;
  validate(node->kind == Node::Kind::list && node->items.size() == 2,
           "{}: {}: expected a list of two numbers, got {}", node->where, path(name),
           node->kind == Node::Kind::list ? fmt::format("{} of them", node->items.size())
                                          : node->describe());
  first = number(node->items[0], name, range);
  second = number(node->items[1], name, range);
}

void KeyReader::refused(std::string_view name, std::string_view why) {
  refused_.insert(path(name));
  if (const Node* node = lookup(name))
    fail(ExitCode::bad_input, "{}: {}: {}", node->where, path(name), why);
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
             value.where, full, full.substr(0, full.rfind('.')), last_part(full));
    std::vector<std::string> usable;
    std::ranges::set_difference(known_, refused_, std::back_inserter(usable));
    fail(ExitCode::bad_input, "{}: unknown key '{}'{}", value.where, full,
         did_you_mean(full, usable));
  }
}

}  // namespace llamesh::config
