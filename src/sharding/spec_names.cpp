#include "sharding/spec_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"

namespace llamesh::sharding {
namespace {

/// Parses text that consists only of digits.
std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.starts_with('-'))
    return std::nullopt;
  return value;
}

/// A name with its layer number replaced by `*`, and that number.
struct Pattern {
  std::string name;
  std::optional<int> layer;
};
Pattern pattern_of(const std::string& name, std::string_view layer_prefix) {
  const auto begin = layer_prefix.size();
  if (!name.starts_with(layer_prefix)) return {name, std::nullopt};
  const auto end = std::min(name.find('.', begin), name.size());
  const auto layer = number(std::string_view(name).substr(begin, end - begin));
  if (!layer) return {name, std::nullopt};
  return {fmt::format("{}*{}", layer_prefix, name.substr(end)), layer};
}

/// Returns true if a child of the module projects to heads that ranks may share, those of keys or
/// values. A module's subtree follows it.
bool is_attention(const model::ParameterTable& table, std::size_t m) {
  const auto parent_of = [&](std::size_t c) { return model::index(table.modules[c].parent); };
  for (auto c = m + 1; c < table.modules.size() && parent_of(c) >= m; ++c) {
    const auto& parameters = table.modules[c].parameters;
    if (parent_of(c) == m && !parameters.empty() && table[parameters.front()].blocks.may_be_shared)
      return true;
  }
  return false;
}

/// Replaces a name that only torchprime's module tree has with Hugging Face's.
std::string as_hugging_face(std::string name) {
  constexpr std::string_view scanned = ".decoder_layer";  // wraps each layer in its first versions
  if (const auto at = name.find(scanned); at != std::string::npos) {
    const auto after = at + scanned.size();
    if (after == name.size() || name[after] == '.') name.erase(at, scanned.size());
  }
  for (const std::string_view of_o : {".self_attn.o_proj_weight", ".self_attn.shard_o_proj_weight"})
    if (name.ends_with(of_o))
      name.replace(name.size() - of_o.size(), of_o.size(), ".self_attn.o_proj.weight");
  return name;
}

/// Replaces the name of a matrix of every expert, "experts.*.w1.weight", with that of their stack,
/// "experts.w1". Returns true if it was one.
bool replace_by_stack(std::string& name) {
  constexpr std::string_view any = ".experts.*.", weight = ".weight", stack = ".experts.";
  const auto at = name.find(any);
  if (at == std::string::npos || !name.ends_with(weight)) return false;
  name.erase(name.size() - weight.size());
  name.replace(at, any.size(), stack);
  return true;
}

}  // namespace

std::string to_string(const std::vector<std::vector<std::string>>& dims) {
  const auto join = [](const auto& words, const auto& text_of) {
    std::string text;
    for (const auto& word : words) text += (text.empty() ? "" : ", ") + text_of(word);
    return '[' + text + ']';
  };
  return join(dims, [&](const std::vector<std::string>& axes) {
    return axes.empty()       ? std::string("null")
           : axes.size() == 1 ? axes.front()
                              : join(axes, [](const std::string& axis) { return axis; });
  });
}

Spec with_stack_dims(Spec spec) {
  for (auto& entry : spec.entries)
    if (std::string name = entry.name; entry.dims.size() == 2 && replace_by_stack(name))
      entry.dims.insert(entry.dims.begin(), {{}});
  return spec;
}

SpecName without_element(const SpecEntry& entry) {
  const auto open = entry.name.find('[');
  if (open == std::string::npos) return {entry.name, -1};
  const auto element =
      entry.name.ends_with(']')
          ? number(std::string_view(entry.name).substr(open + 1, entry.name.size() - open - 2))
          : std::nullopt;
  validate(element.has_value(),
           "{}: {}: brackets at the end of a module's name choose one of its outputs by number, as "
           "in model.layers.*[0]",
           entry.where, entry.name);
  return {entry.name.substr(0, open), *element};
}

SpecNames::SpecNames(const model::ParameterTable& table)
    : layer_prefix_(table.layer_prefix), layers_(table.layers.size()) {
  for (std::size_t m = 0; m < table.modules.size(); ++m) add_module(table, m);
}

/// Adds a module's own weights and its output. The root and the list of layers have no output that
/// a spec could name.
void SpecNames::add_module(const model::ParameterTable& table, std::size_t m) {
  const auto& module = table.modules[m];
  if (m == model::index(table.root) || module.name + '.' == layer_prefix_) return;
  if (m == model::index(table.lm_head.module)) {  // which has no weight of its own if it is tied
    add_weight(module.name + ".weight", table.lm_head.weight);
    return add_output(module.name, table.lm_head.weight);
  }
  for (const auto id : module.parameters) add_weight(table[id].name, id);
  const auto is_of_weight = [&](model::ParameterId id) {
    using enum model::Role;
    const auto role = table[id].role;
    return role == column || role == router || role == gate;
  };
  const bool leaves_residual =
      !module.parameters.empty() && is_of_weight(module.parameters.front());
  add_output(module.name,
             leaves_residual ? std::optional(module.parameters.front()) : std::nullopt);
  // torchprime's name for the heads' output, which is divided like the queries.
  if (m + 1 < table.modules.size() && is_attention(table, m))
    add_output(module.name + ".core_attention", table.modules[m + 1].parameters.front());
}

void SpecNames::add_weight(std::string name, model::ParameterId weight) {
  add({std::move(name), true, weight});
}

void SpecNames::add_output(std::string name, std::optional<model::ParameterId> weight) {
  add({std::move(name), false, weight});
}

void SpecNames::add(SpecTarget target) {
  by_pattern_[pattern_of(target.name, layer_prefix_).name].push_back(targets_.size());
  targets_.push_back(std::move(target));
}

std::vector<std::size_t> SpecNames::find(const SpecEntry& entry) const {
  const auto [written, element] = without_element(entry);
  auto name = as_hugging_face(written);
  replace_by_stack(name);
  const auto [pattern, layer] = pattern_of(name, layer_prefix_);
  const auto found = by_pattern_.find(pattern);
  if (found == by_pattern_.end()) refuse(entry, written);
  if (element >= 0) {
    validate(!targets_[found->second.front()].is_weight,
             "{}: {}: a weight has no elements; write {}", entry.where, entry.name, written);
    validate(element == 0, "{}: {}: there is one output, {}[0]", entry.where, entry.name, written);
  }
  if (!layer) return found->second;
  validate(*layer < static_cast<int>(layers_), "{}: {}: the model has layers 0 to {}", entry.where,
           entry.name, layers_ - 1);
  const auto target =
      std::ranges::find(found->second, name, [&](std::size_t t) { return targets_[t].name; });
  if (target == found->second.end()) refuse(entry, written);
  return {*target};
}

void SpecNames::refuse(const SpecEntry& entry, const std::string& name) const {
  const auto word = pattern_of(name, layer_prefix_).name.substr(0, 200);
  std::string best;
  std::size_t least = std::max<std::size_t>(2, word.size() / 3) + 1;
  const auto consider = [&](const std::string& candidate) {
    const auto distance = edit_distance(word, candidate);
    if (distance < least) std::tie(best, least) = std::pair(candidate, distance);
  };
  for (const auto& [pattern, targets] : by_pattern_) consider(pattern);
  for (const char* of_o : {"o_proj_weight", "shard_o_proj_weight"})
    consider(fmt::format("{}*.self_attn.{}", layer_prefix_, of_o));
  fail(ExitCode::bad_input, "{}: the model has no weight or module '{}'{}", entry.where,
       excerpt(name), best.empty() ? "" : fmt::format("; did you mean '{}'?", best));
}

}  // namespace llamesh::sharding
