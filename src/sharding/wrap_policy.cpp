#include "sharding/wrap_policy.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

namespace llamesh::sharding {
namespace {

using model::index;
using model::ParameterTable;

/// Mask over the table's modules: those that start a unit.
using Wrapped = std::vector<bool>;

/// Each module's children and own parameters, from the table's parent links.
struct Tree {
  explicit Tree(const ParameterTable& table)
      : children(table.modules.size()), parameters(table.modules.size()) {
    for (std::size_t m = 1; m < table.modules.size(); ++m)
      children[index(table.modules[m].parent)].push_back(m);
    for (std::size_t p = 0; p < table.parameters.size(); ++p)
      parameters[index(table.parameters[p].module)].push_back(p);
  }
  std::vector<std::vector<std::size_t>> children;
  std::vector<std::vector<std::size_t>> parameters;
};

/// Returns true if a module may start a unit. The list of layers and the modules around it are
/// never entered. A tied embedding is used at both ends of the model and stays in the root unit.
bool can_be_unit(const ParameterTable& table, std::size_t module) {
  const auto& name = table.modules[module].name;
  const bool holds_layers = table.layer_prefix.starts_with(name + '.');
  return !holds_layers && !(table.tied() && module == index(table.embed_tokens.module));
}

/// Recurses into modules with at least `min_numel` elements, children first. Wraps a module if at
/// least that many elements in it remain unwrapped, but no norm: it is not worth a gather, and the
/// table has a layer's norms behind the modules that are entered after them. Returns the number
/// wrapped below.
std::int64_t wrap_by_size(const ParameterTable& table, const Tree& tree, std::size_t module,
                          std::int64_t min_numel, Wrapped& wrapped) {
  const std::function<std::int64_t(std::size_t)> numel = [&](std::size_t m) {
    std::int64_t sum = 0;
    for (const auto p : tree.parameters[m]) sum += table.parameters[p].numel();
    for (const auto child : tree.children[m]) sum += numel(child);
    return sum;
  };
  const std::int64_t total = numel(module);
  const auto is_vector = [&](std::size_t p) { return !table.parameters[p].is_matrix(); };
  const bool is_norm =
      tree.children[module].empty() && std::ranges::all_of(tree.parameters[module], is_vector);
  if (total < min_numel || is_norm) return 0;
  std::int64_t below = 0;
  for (const auto child : tree.children[module])
    below += wrap_by_size(table, tree, child, min_numel, wrapped);
  if (total - below >= min_numel && can_be_unit(table, module)) {
    wrapped[module] = true;
    return total;
  }
  return below;
}

Wrapped wrapped_modules(const ParameterTable& table, const WrapOptions& options) {
  Wrapped wrapped(table.modules.size(), false);
  if (options.wrap == Wrap::size)
    wrap_by_size(table, Tree(table), index(table.root), options.min_numel, wrapped);
  if (options.wrap == Wrap::layer) {
    for (const auto layer : table.layers) wrapped[index(layer)] = true;
    wrapped[index(table.norm.module)] = true;
    for (const auto& at_end : {table.embed_tokens, table.lm_head})
      wrapped[index(at_end.module)] = can_be_unit(table, index(at_end.module));
  }
  wrapped[index(table.root)] = true;
  return wrapped;
}

/// Joins norm and head, which are entered together, so that one gather serves both.
void join_norm_and_head(const ParameterTable& table, std::vector<Unit>& units) {
  const auto at = [&](ModuleId id) {
    return std::find_if(units.begin(), units.end(),
                        [&](const Unit& u) { return u.modules.front() == id; });
  };
  const auto norm = at(table.norm.module);
  if (norm == units.end() || at(table.lm_head.module) == units.end()) return;
  norm->name += " + lm_head";
  const auto head = at(table.lm_head.module);
  norm->modules.push_back(table.lm_head.module);
  norm->parameters.insert(norm->parameters.end(), head->parameters.begin(), head->parameters.end());
  units.erase(head);
}

/// A line in describe_units(), for a unit or a parameter in it. One layer's lines are consecutive.
struct Line {
  std::string before;  ///< the name, up to the layer number if it has one
  std::string after;   ///< the part after the number
  bool numbered;
  std::int64_t layer;  ///< -1: outside the layers
  std::int64_t numel;
  std::int64_t shard_numel;  ///< 0: not shown
  std::string stages = {};

  bool is_like(const Line& other) const {
    return std::tie(before, after, numbered, numel, shard_numel, stages) ==
           std::tie(other.before, other.after, other.numbered, other.numel, other.shard_numel,
                    other.stages);
  }
};

/// Omits the first `hidden` characters, which the name shares with its unit. Layer names begin with
/// `layers`.
Line make_line(std::string_view layers, const std::string& indent, const std::string& name,
               std::size_t hidden) {
  Line line{indent + name.substr(hidden), "", false, -1, 0, 0};
  if (!name.starts_with(layers)) return line;
  const auto end = std::min(name.find_first_of(". ", layers.size()), name.size());
  line.layer = std::stoll(name.substr(layers.size(), end - layers.size()));
  if (hidden > 0) return line;
  line.before = indent + std::string(layers);
  line.after = name.substr(end);
  line.numbered = true;
  return line;
}

std::vector<Line> lines_of(const ShardLayout& layout) {
  std::vector<Line> lines;
  for (const auto& unit : layout.units()) {
    lines.push_back(make_line(layout.table().layer_prefix, "", unit.name, 0));
    lines.back().numel = unit.numel;
    lines.back().shard_numel = unit.shard_numel;
    lines.back().stages = stages_text(unit.stages);
    for (const auto id : unit.parameters) {
      const auto& name = layout.table()[id].name;
      const bool below = name.starts_with(unit.name + ".");
      lines.push_back(
          make_line(layout.table().layer_prefix, "  ", name, below ? unit.name.size() + 1 : 0));
      lines.back().numel = layout.table()[id].numel();
    }
  }
  return lines;
}

/// Returns how many lines describe the layer at `at`, and how many consecutive layers share them.
struct Repeated {
  std::size_t lines = 1;
  std::int64_t layers = 1;
};
Repeated repeated_from(const std::vector<Line>& all, std::size_t at) {
  Repeated found;
  const auto layer = all[at].layer;
  if (layer < 0) return found;
  while (at + found.lines < all.size() && all[at + found.lines].layer == layer) ++found.lines;
  for (std::size_t next = at + found.lines; next + found.lines <= all.size(); next += found.lines) {
    for (std::size_t i = 0; i < found.lines; ++i)
      if (all[next + i].layer != layer + found.layers || !all[next + i].is_like(all[at + i]))
        return found;
    ++found.layers;
  }
  return found;
}

std::string to_text(const Line& line, std::int64_t layers) {
  const auto number = !line.numbered ? ""
                      : layers == 1  ? fmt::format("{}", line.layer)
                                     : fmt::format("{}..{}", line.layer, line.layer + layers - 1);
  const auto times = layers == 1 ? "" : fmt::format("{} x ", layers);
  const auto shard = line.shard_numel == 0 ? "" : fmt::format("{}{}", times, line.shard_numel);
  return fmt::format("{:<44} {:>20} {:>20}  {}", line.before + number + line.after,
                     fmt::format("{}{}", times, line.numel), shard, line.stages);
}

/// The property that parameters of a unit share.
struct Kind {
  UnitAxes axes;
  bool frozen, fp32;
  std::optional<ops::CodeFormat> codes;
  bool operator==(const Kind&) const = default;
};

/// Returns the suffix that distinguishes the units of one module: " (shard)", " (not sharded)". A
/// unit that is frozen, or always fp32, is marked in any case.
std::string suffix_of(const Kind& kind, const std::vector<Kind>& kinds,
                      const comm::ParallelDims& dims) {
  const bool by_axes =
      std::ranges::any_of(kinds, [&](const Kind& other) { return other.axes != kind.axes; });
  const auto names = comm::to_string(kind.axes.sharded, dims);
  const std::string axes = !by_axes ? "" : names.empty() ? "not sharded" : names;
  std::vector<std::string> words;
  if (!axes.empty()) words.push_back(axes);
  if (kind.fp32) words.emplace_back("fp32");
  if (kind.frozen) words.emplace_back("frozen");
  if (kind.codes) words.emplace_back(name_of(*kind.codes));
  return words.empty() ? "" : fmt::format(" ({})", fmt::join(words, ", "));
}

}  // namespace

std::vector<Unit> make_units(const ParameterTable& table, const WrapOptions& options) {
  const Wrapped wrapped = wrapped_modules(table, options);
  std::vector<Unit> units;
  std::vector<std::size_t> unit_of(table.modules.size());  // parents come first
  for (std::size_t m = 0; m < table.modules.size(); ++m) {
    if (!wrapped[m]) {
      unit_of[m] = unit_of[index(table.modules[m].parent)];
      continue;
    }
    unit_of[m] = units.size();
    const auto& name = table.modules[m].name;
    units.push_back({name.empty() ? "root" : name, {static_cast<ModuleId>(m)}, {}});
  }
  for (std::size_t p = 0; p < table.parameters.size(); ++p)
    units[unit_of[index(table.parameters[p].module)]].parameters.push_back(
        static_cast<ParameterId>(p));
  std::erase_if(units, [](const Unit& unit) { return unit.parameters.empty(); });
  if (options.wrap == Wrap::layer) join_norm_and_head(table, units);
  return units;
}

std::vector<Unit> make_units(const ParameterTable& table, const WrapOptions& options,
                             const comm::ParallelDims& dims, const Placements& placements) {
  std::vector<Unit> split;
  const auto kind_of = [&](ParameterId id) {
    return Kind{unit_axes(placements[index(id)], dims), table[id].frozen,
                model::is_fp32(table[id].role), table[id].codes};
  };
  for (const auto& unit : make_units(table, options)) {
    const auto first = static_cast<std::ptrdiff_t>(split.size());
    for (const auto id : unit.parameters) {
      const auto alike = std::find_if(split.begin() + first, split.end(), [&](const Unit& u) {
        return kind_of(u.parameters.front()) == kind_of(id);
      });
      if (alike != split.end())
        alike->parameters.push_back(id);
      else
        split.push_back({unit.name, unit.modules, {id}});
    }
    const auto parts = std::span(split).subspan(static_cast<std::size_t>(first));
    std::vector<Kind> kinds;
    for (const auto& part : parts) kinds.push_back(kind_of(part.parameters.front()));
    for (std::size_t i = 0; i < parts.size(); ++i)
      parts[i].name += suffix_of(kinds[i], kinds, dims);
  }
  return split;
}

std::string describe_units(const ShardLayout& layout, Layers layers) {
  const auto lines = lines_of(layout);
  std::string text;
  const auto add = [&](std::string line) {
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  };
  add(fmt::format("{:<44} {:>20} {:>20}", "unit", "elements", "of each rank"));
  for (std::size_t at = 0; at < lines.size();) {
    const auto same = layers == Layers::folded ? repeated_from(lines, at) : Repeated{};
    for (std::size_t i = at; i < at + same.lines; ++i) add(to_text(lines[i], same.layers));
    at += same.lines * static_cast<std::size_t>(same.layers);
  }
  const auto& dims = layout.dims();
  const auto total = fmt::format("{} units", layout.units().size());
  const auto ranks = dims.group(dims.pipeline(), 0);  // one in each stage
  if (ranks.size() == 1)
    add(fmt::format("{:<44} {:>20} {:>20}", total, layout.table().numel(), layout.shard_numel()));
  else
    for (int stage = 0; stage < std::ssize(ranks); ++stage)
      add(fmt::format("{:<44} {:>20} {:>20}  {}", stage == 0 ? total : "",
                      stage == 0 ? fmt::format("{}", layout.table().numel()) : "",
                      layout.shard_numel(ranks[static_cast<std::size_t>(stage)]),
                      stages_text({stage})));
  return text;
}

}  // namespace llamesh::sharding
