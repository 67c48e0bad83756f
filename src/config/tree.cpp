#include "config/tree.hpp"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <sstream>
#include <string_view>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/text.hpp"
#include "core/utf8.hpp"

namespace llamesh::config {
namespace {

constexpr std::size_t largest_text = 1U << 20U;
// Aliases may refer to their own ancestors or double at every level: these limits stop both.
constexpr int deepest = 16;
constexpr int max_nodes = 20'000;

class Converter {
 public:
  explicit Converter(const std::string& name) : name_(name) {}

  Node convert(const YAML::Node& yaml, int depth = 0) {
    Node node;
    node.where = where(yaml.Mark());
    validate(depth < deepest && ++count_ < max_nodes,
             "{}: an input file may have {} levels and {} values; check for an alias that refers "
             "to itself",
             node.where, deepest, max_nodes);
    if (yaml.IsScalar()) {
      node.kind = Node::Kind::scalar;
      node.scalar = yaml.Scalar();
    } else if (yaml.IsSequence()) {
      node.kind = Node::Kind::list;
      for (const auto& item : yaml) node.items.push_back(convert(item, depth + 1));
    } else if (yaml.IsMap()) {
      node.kind = Node::Kind::map;
      for (const auto& member : yaml) add_member(node, member.first, member.second, depth);
    }
    return node;
  }

  std::string where(const YAML::Mark& mark) const {
    return mark.is_null() ? name_ : fmt::format("{}:{}", name_, mark.line + 1);
  }

 private:
  void add_member(Node& node, const YAML::Node& key, const YAML::Node& value, int depth) {
    const std::string at = where(key.Mark());
    validate(key.IsScalar() && !key.Scalar().empty(), "{}: a key must be a plain word", at);
    const std::string& word = key.Scalar();
    const Node* earlier = node.find(word);
    validate(earlier == nullptr, "{}: duplicate key '{}'; it is already at {}", at, excerpt(word),
             earlier ? earlier->where : "");
    Node child = convert(value, depth + 1);
    child.where = at;  // the key's line, also for a group of keys below it
    node.members.emplace_back(word, std::move(child));
  }

  const std::string& name_;
  int count_ = 0;
};

void set_where(Node& node, const std::string& where) {
  node.where = where;
  for (Node& item : node.items) set_where(item, where);
  for (auto& member : node.members) set_where(member.second, where);
}

/// Handler that only counts. On a stray character (",key:") yaml-cpp finds documents endlessly, so
/// loading them all would exhaust the memory.
class DocumentCounter final : public YAML::EventHandler {
 public:
  int documents = 0;
  void OnDocumentStart(const YAML::Mark& /*mark*/) override { ++documents; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& /*mark*/, YAML::anchor_t /*anchor*/) override {}
  void OnAlias(const YAML::Mark& /*mark*/, YAML::anchor_t /*anchor*/) override {}
  void OnScalar(const YAML::Mark& /*mark*/, const std::string& /*tag*/, YAML::anchor_t /*anchor*/,
                const std::string& /*value*/) override {}
  void OnSequenceStart(const YAML::Mark& /*mark*/, const std::string& /*tag*/,
                       YAML::anchor_t /*anchor*/, YAML::EmitterStyle::value /*style*/) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& /*mark*/, const std::string& /*tag*/, YAML::anchor_t /*anchor*/,
                  YAML::EmitterStyle::value /*style*/) override {}
  void OnMapEnd() override {}
};

int documents_up_to_two(const std::string& text) {
  std::istringstream in(text);
  YAML::Parser parser(in);
  DocumentCounter counter;
  while (counter.documents < 2 && parser.HandleNextDocument(counter)) {
  }
  return counter.documents;
}

/// Parses one document as it is; empty text gives null.
Node parse_value(const std::string& text, const std::string& name) {
  validate(text.size() <= largest_text,
           "{}: an input file may have at most {} bytes, but this one has {}; shorten it", name,
           largest_text, text.size());
  Converter converter(name);
  try {
    const int documents = documents_up_to_two(text);
    validate(documents <= 1,
             "{}: more than one YAML document; remove the --- between them, or a stray character",
             name);
    if (documents == 0) return Node{.where = name, .scalar = {}, .items = {}, .members = {}};
    return converter.convert(YAML::Load(text));
  } catch (const YAML::Exception& error) {
    const bool is_reference =
        error.msg.find("anchor") != error.msg.npos || error.msg.find("alias") != error.msg.npos;
    fail(ExitCode::bad_input, "{}: not valid YAML: {}{}", converter.where(error.mark), error.msg,
         is_reference ? "; quote a value that begins with * or &, as in [\"*.q_proj\"]"
         : name.starts_with("command line")
             ? "; quote names with brackets or braces, as in [\"layers.[0-9].*\"]"
             : "");
  }
}

/// Parses flow YAML. Takes any other text as it is: the shell has removed the quotes that would
/// protect a # or a trailing space from YAML.
Node value_of_override(const std::string& written, const std::string& path) {
  if (!written.empty() && std::string_view("[{\"'").find(written[0]) != std::string_view::npos)
    return parse_value(written, "command line: " + excerpt(path));
  Node value{.where = {}, .scalar = {}, .items = {}, .members = {}};
  if (is_null_word(written)) return value;
  value.kind = Node::Kind::scalar;
  value.scalar = written;
  return value;
}

}  // namespace

bool is_null_word(std::string_view word) {
  constexpr std::array words{"", "~", "null", "Null", "NULL"};
  return std::ranges::find(words, word) != words.end();
}

Node* Node::find(std::string_view key) {
  const auto found = std::ranges::find(
      members, key, [](const auto& member) -> std::string_view { return member.first; });
  return found == members.end() ? nullptr : &found->second;
}

std::string Node::describe() const {
  switch (kind) {
    case Kind::scalar:
      return fmt::format("'{}'", excerpt(scalar));
    case Kind::list:
      return "a list";
    case Kind::map:
      return "a group of keys";
    case Kind::null:
      break;
  }
  return "nothing";
}

void validate_utf8(const std::string& value, const std::string& where) {
  const auto valid = valid_utf8_prefix(value);
  validate(valid == value.size(), "{}: '{}' is not UTF-8 (byte {}); use a name in UTF-8", where,
           excerpt(replace_invalid_utf8(value)), valid);
}

std::string read_yaml_file(const std::string& path) {
  return read_file(path, std::int64_t{1} << 20);
}

Node parse_tree(const std::string& text, const std::string& name) {
  Node root = parse_value(text, name);
  if (root.kind == Node::Kind::null) root.kind = Node::Kind::map;
  return root;
}

void overlay(Node& base, Node over) {
  if (base.kind != Node::Kind::map || over.kind != Node::Kind::map) {
    base = std::move(over);
    return;
  }
  for (auto& [key, value] : over.members) {
    if (Node* below = base.find(key))
      overlay(*below, std::move(value));
    else
      base.members.emplace_back(key, std::move(value));
  }
}

void apply_override(Node& root, const std::string& text) {
  const auto equals = text.find('=');
  validate(equals != std::string::npos && equals > 0,
           "command line: '{}' is not of the form key.path=value", excerpt(text));
  const std::string path = text.substr(0, equals);
  validate(std::ranges::count(path, '.') < deepest, "command line: '{}' has more than {} levels",
           excerpt(text), deepest);
  Node* node = &root;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    validate(!key.empty(), "command line: '{}' has an empty part in its key; write key.path=value",
             excerpt(text));
    if (node->kind == Node::Kind::null) node->kind = Node::Kind::map;
    validate(node->kind == Node::Kind::map,
             "command line: {}: '{}' is {} at {}, not a group of keys", excerpt(text),
             excerpt(path.substr(0, begin > 0 ? begin - 1 : 0)), node->describe(), node->where);
    Node* child = node->find(key);
    if (child == nullptr) {
      node->members.emplace_back(key, Node{});
      child = &node->members.back().second;
      child->where = "command line";
    }
    node = child;
    begin = end + 1;
  }
  Node value = value_of_override(text.substr(equals + 1), path);
  set_where(value, "command line");
  overlay(*node, std::move(value));
}

}  // namespace llamesh::config
