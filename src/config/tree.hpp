#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace llamesh::config {

/// A parsed YAML value that remembers where it was written.
struct Node {
  struct Member;
  enum class Kind { null, scalar, list, map };

  Kind kind = Kind::null;
  std::string where;   ///< "inputs/tiny.yaml:12" or "command line"
  std::string scalar;  ///< of a scalar, without quotes
  std::vector<Node> items;
  std::vector<Member> members;

  /// The member of a map, or nullptr.
  Node* find(std::string_view key);
  const Node* find(std::string_view key) const { return const_cast<Node*>(this)->find(key); }
  /// "'abc'", "a list", "a group of keys" or "nothing", for messages.
  std::string describe() const;
};

/// A key of a map and its value, named as in the entries of std::map. Not a std::pair, whose parts
/// would have to be complete types where Node is defined.
struct Node::Member {
  std::string first;
  Node second;
};

/// The text of a file of inputs. Throws a user error when it cannot be read or is over 1 MiB.
std::string read_yaml_file(const std::string& path);

/// Parses one YAML document; an empty one gives an empty map. Throws a user error with `name` and
/// the line for text that is not YAML, duplicate keys, keys that are not plain words, several
/// documents, and excessive size or depth.
Node parse_tree(const std::string& text, const std::string& name);

/// Merges `over` into `base`: maps key by key, any other value of `over` replaces that of `base`.
void overlay(Node& base, Node over);

/// Applies "key.path=value"; the value is YAML. The last of several for one key wins. Throws a user
/// error when the text has another form or a part of the path is not a group of keys.
void apply_override(Node& root, const std::string& text);

}  // namespace llamesh::config
