#include "config/include.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "config/key_writer.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/text.hpp"

namespace llamesh::config {
namespace {

constexpr std::string_view prefix = "sharding.spec.";
/// Returns the map in a file. torchprime's older files are a group of model options: `sharding`,
/// and these others for recomputation and compilation.
Node read_spec_file(const std::string& path, const std::string& where) {
  constexpr std::array<std::string_view, 2> others{"activation_checkpoint_layers",
                                                   "optimization_barrier_layers"};
  std::error_code ignored;
  validate(std::filesystem::is_regular_file(path, ignored),
           "{}: sharding.spec: '{}' is not a file; give a YAML file or a map of names", where,
           path);
  Node map = parse_tree(read_yaml_file(path), path);
  validate(map.kind == Node::Kind::map, "{}: expected names of weights and modules, got {}",
           map.where, map.describe());
  Node* nested = map.find("sharding");
  if (nested == nullptr) return map;
  for (const auto& [name, value] : map.members)
    validate(name == "sharding" || std::ranges::find(others, name) != others.end(),
             "{}: '{}' is outside the group sharding; move it into that group", value.where,
             excerpt(name));
  Node inner = std::move(*nested);
  return inner;
}

void add_flat(Node& flat, const std::string& name, Node value) {
  if (value.kind == Node::Kind::map) {
    for (auto& [key, below] : value.members)
      add_flat(flat, name.empty() ? key : fmt::format("{}.{}", name, key), std::move(below));
    return;
  }
  const Node* earlier = flat.find(name);
  validate(earlier == nullptr, "{}: duplicate name '{}'; it is already at {}", value.where,
           excerpt(name), earlier ? earlier->where : "");
  flat.members.emplace_back(name, std::move(value));
}

void apply_spec_override(Node& flat, const std::string& text) {
  const auto equals = text.find('=');
  validate(equals != std::string::npos && equals > prefix.size(),
           "command line: '{}' is not of the form {}NAME=[...]", excerpt(text), prefix);
  const auto name = text.substr(prefix.size(), equals - prefix.size());
  Node value;
  apply_override(value, "dims=" + text.substr(equals + 1));
  Node dims = std::move(value.members.front().second);
  if (Node* entry = flat.find(name))
    *entry = std::move(dims);
  else
    flat.members.emplace_back(name, std::move(dims));
}

std::vector<std::string> axes_of(const Node& node, const std::string& name) {
  const auto refuse = [&](const Node& what) {
    fail(ExitCode::bad_input, "{}: {}: expected an axis, null or a list of axes for a dim, got {}",
         what.where, excerpt(name), what.describe());
  };
  std::vector<std::string> axes;
  if (node.kind == Node::Kind::scalar) axes.push_back(node.scalar);
  if (node.kind == Node::Kind::map) refuse(node);
  for (const Node& item : node.items) {
    if (item.kind != Node::Kind::scalar) refuse(item);
    axes.push_back(item.scalar);
  }
  return axes;
}

}  // namespace

bool is_spec_override(std::string_view text) {
  return text.starts_with(prefix);
}

void include_spec(Node& root, const std::vector<std::string>& overrides,
                  const std::function<std::string(const Node&)>& resolve) {
  Node* sharding = root.find("sharding");
  Node* spec = sharding ? sharding->find("spec") : nullptr;
  const bool given = spec != nullptr && spec->kind != Node::Kind::null;
  validate(given || overrides.empty(),
           "command line: '{}' changes an entry of a spec, but no spec is given; set "
           "sharding.spec",
           overrides.empty() ? "" : excerpt(overrides.front()));
  if (!given) return;
  if (spec->kind == Node::Kind::scalar) *spec = read_spec_file(resolve(*spec), spec->where);
  validate(spec->kind == Node::Kind::map,
           "{}: sharding.spec: expected a file or a map of names, got {}", spec->where,
           spec->describe());
  Node flat{Node::Kind::map, spec->where, {}, {}, {}};
  add_flat(flat, "", std::move(*spec));
  for (const auto& text : overrides) apply_spec_override(flat, text);
  std::erase_if(flat.members,
                [](const auto& entry) { return entry.second.kind == Node::Kind::null; });
  *spec = std::move(flat);
}

sharding::Spec spec_of(const Node& map) {
  sharding::Spec spec;
  for (const auto& [name, dims] : map.members) {
    validate(dims.kind == Node::Kind::list,
             "{}: {}: expected a list with an axis or null for each dim, got {}", dims.where,
             excerpt(name), dims.describe());
    sharding::SpecEntry entry{name, {}, dims.where};
    for (const Node& dim : dims.items) entry.dims.push_back(axes_of(dim, name));
    spec.entries.push_back(std::move(entry));
  }
  return spec;
}

std::string yaml_dims(const std::vector<std::vector<std::string>>& dims) {
  auto quoted = dims;
  for (auto& axes : quoted)
    for (auto& axis : axes) axis = yaml_word(axis);
  return sharding::to_string(quoted);
}

}  // namespace llamesh::config
