#include "config/changes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "config/tree.hpp"
#include "core/error.hpp"

namespace llamesh::config {
namespace {

constexpr std::array<std::string_view, 5> without_effect{"run", "checkpoint", "log", "debug",
                                                         "profile"};

/// Formats the value on one line.
std::string text_of(const Node& node) {
  if (node.kind == Node::Kind::scalar) return node.scalar.empty() ? "''" : node.scalar;
  if (node.kind == Node::Kind::null) return "null";
  std::string inside;
  const auto add = [&](const std::string& text) { inside += (inside.empty() ? "" : ", ") + text; };
  for (const Node& item : node.items) add(text_of(item));
  for (const auto& [key, value] : node.members) add(key + ": " + text_of(value));
  return node.kind == Node::Kind::list ? '[' + inside + ']' : '{' + inside + '}';
}

void compare(const Node& before, const Node& now, const std::string& path,
             std::vector<std::string>& changed) {
  if (before.kind == Node::Kind::map && now.kind == Node::Kind::map) {
    for (const auto& [key, value] : now.members)
      if (const Node* old = before.find(key))
        compare(*old, value, path.empty() ? key : fmt::format("{}.{}", path, key), changed);
  } else if (text_of(before) != text_of(now)) {
    changed.push_back(fmt::format("{} {} -> {}", path, text_of(before), text_of(now)));
  }
}

}  // namespace

std::vector<std::string> changes(const std::string& before, const std::string& now) {
  std::vector<std::string> changed;
  Node present = parse_tree(now, "resolved inputs");
  std::erase_if(present.members, [](const auto& group) {
    return std::ranges::find(without_effect, group.first) != without_effect.end();
  });
  try {
    const Node past = parse_tree(before, "inputs in the checkpoint");
    if (past.kind == Node::Kind::map) compare(past, present, "", changed);
  } catch (const Error&) {
    return {};  // not written by llamesh: nothing to compare
  }
  return changed;
}

}  // namespace llamesh::config
