#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace llamesh::config {

/// A parsed YAML value with its source location.
struct Node {
  struct Member;
  enum class Kind { null, scalar, list, map };

  Kind kind = Kind::null;
  std::string where;   ///< "inputs/tiny.yaml:12" or "command line"
  std::string scalar;  ///< a scalar's text, without quotes
  std::vector<Node> items;
  std::vector<Member> members;

  /// Returns a map's member, or nullptr.
  Node* find(std::string_view key);
  const Node* find(std::string_view key) const { return const_cast<Node*>(this)->find(key); }
  /// Returns "'abc'", "a list", "a group of keys" or "nothing", for messages.
  std::string describe() const;
};

/// A key in a map and its value, with the names in std::map's entries. Not a std::pair, whose
/// members would have to be complete types at Node's definition.
struct Node::Member {
  std::string first;
  Node second;
};

/// Returns true if YAML takes a word without quotes for null.
bool is_null_word(std::string_view word);

/// Throws a user error that begins with `where`, a file and a key, unless the value is UTF-8, which
/// a checkpoint's JSON requires.
void validate_utf8(const std::string& value, const std::string& where);

/// Reads an inputs file. Throws a user error if it cannot be read or exceeds 1 MiB.
std::string read_yaml_file(const std::string& path);

/// Parses one YAML document; an empty one gives an empty map. Throws a user error with `name` and
/// line for invalid YAML, duplicate keys, keys that are not plain words, several documents, and
/// excessive size or depth.
Node parse_tree(const std::string& text, const std::string& name);

/// Merges `over` into `base`: maps key by key; any other value in `over` replaces the one in
/// `base`.
void overlay(Node& base, Node over);

/// Applies "key.path=value". The value is flow YAML if it begins with [, {, " or ', and nothing if
/// it is a null word; any other text is taken as it is. The last override for a key wins. Throws a
/// user error if the text has another form or a path component is not a group of keys.
void apply_override(Node& root, const std::string& text);

}  // namespace llamesh::config
