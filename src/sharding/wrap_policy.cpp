#include "sharding/wrap_policy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace llamesh::sharding {
namespace {

using model::index;
using model::ParameterTable;

/// The modules that each start a unit, as a mask over the table's modules.
using Wrapped = std::vector<bool>;

/// Child modules and own parameters of each module, from the table's parent links.
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

/// "model" and "model.layers" only hold others and are never entered, so they cannot be units. A
/// tied embedding is used at both ends of the model and stays in the root unit throughout.
bool can_be_unit(const ParameterTable& table, std::size_t module) {
  const auto& name = table.modules[module].name;
  const bool container = name == "model" || name == "model.layers";
  return !container && !(table.tied() && module == index(table.embed_tokens.module));
}

/// Recurses into modules of at least `min_numel` elements, children first, and wraps a module when
/// what remains unwrapped in it still has that many. Returns how many elements were wrapped below.
std::int64_t wrap_by_size(const ParameterTable& table, const Tree& tree, std::size_t module,
                          std::int64_t min_numel, Wrapped& wrapped) {
  const std::function<std::int64_t(std::size_t)> numel = [&](std::size_t m) {
    std::int64_t sum = 0;
    for (const auto p : tree.parameters[m]) sum += table.parameters[p].numel();
    for (const auto child : tree.children[m]) sum += numel(child);
    return sum;
  };
  const std::int64_t total = numel(module);
  if (total < min_numel) return 0;
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
    for (const auto& layer : table.layers) wrapped[index(layer.layer)] = true;
    wrapped[index(table.norm.module)] = true;
    for (const auto& leaf : {table.embed_tokens, table.lm_head})
      wrapped[index(leaf.module)] = can_be_unit(table, index(leaf.module));
  }
  wrapped[index(table.root)] = true;
  return wrapped;
}

/// Norm and head are entered together: one gather for both.
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

}  // namespace

std::vector<Unit> make_units(const ParameterTable& table, const WrapOptions& options) {
  const Wrapped wrapped = wrapped_modules(table, options);
  std::vector<Unit> units;
  std::vector<std::size_t> unit_of(table.modules.size());  // modules come parents first
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

std::string describe_units(const ShardLayout& layout) {
  std::string text = fmt::format("{:<44} {:>16} {:>16}\n", "unit", "elements", "of each rank");
  for (const auto& unit : layout.units()) {
    text += fmt::format("{:<44} {:>16} {:>16}\n", unit.name, unit.numel, unit.shard_numel);
    for (const auto id : unit.parameters)
      text +=
          fmt::format("    {:<40} {:>16}\n", layout.table()[id].name, layout.table()[id].numel());
  }
  return text;
}

}  // namespace llamesh::sharding
