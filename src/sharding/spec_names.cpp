#include "sharding/spec_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/did_you_mean.hpp"
#include "core/error.hpp"
#include "core/printable.hpp"

namespace llamesh::sharding {
namespace {

constexpr std::string_view layers = "model.layers.";

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
Pattern pattern_of(const std::string& name) {
  if (!name.starts_with(layers)) return {name, std::nullopt};
  const auto end = std::min(name.find('.', layers.size()), name.size());
  const auto layer = number(std::string_view(name).substr(layers.size(), end - layers.size()));
  if (!layer) return {name, std::nullopt};
  return {fmt::format("{}*{}", layers, name.substr(end)), layer};
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

SpecNames::SpecNames(const model::ParameterTable& table) : layers_(table.layers.size()) {
  using enum SpecRole;
  const auto leaf = [&](const model::Leaf& l, SpecRole weight, SpecRole output) {
    const auto& name = table[l.module].name;
    add(name + ".weight", weight, &l);
    add(name, output, &l);
  };
  leaf(table.embed_tokens, embedding, residual);
  for (const auto& layer : table.layers) add_layer(table, layer);
  leaf(table.norm, norm, residual);
  add("model", residual, nullptr);
  leaf(table.lm_head, head, head);
}

void SpecNames::add_layer(const model::ParameterTable& table, const model::LayerIds& l) {
  using enum SpecRole;
  for (const auto& into : {l.q_proj, l.k_proj, l.v_proj, l.gate_proj, l.up_proj}) {
    add(table[into.module].name + ".weight", columns, &into);
    add(table[into.module].name, columns, &into);
  }
  for (const auto& out : {l.o_proj, l.down_proj}) {
    add(table[out.module].name + ".weight", rows, &out);
    add(table[out.module].name, residual, nullptr);
  }
  for (const auto& of_layer : {l.input_norm, l.post_attention_norm}) {
    add(table[of_layer.module].name + ".weight", norm, &of_layer);
    add(table[of_layer.module].name, residual, nullptr);
  }
  add(table[l.self_attn].name + ".core_attention", columns, &l.q_proj);
  for (const auto module : {l.self_attn, l.mlp, l.layer})
    add(table[module].name, residual, nullptr);
}

void SpecNames::add(std::string name, SpecRole role, const model::Leaf* leaf) {
  by_pattern_[pattern_of(name).name].push_back(targets_.size());
  const bool is_weight = name.ends_with(".weight");
  targets_.push_back(
      {std::move(name), is_weight, role, leaf ? leaf->weight : model::ParameterId{}});
}

std::vector<std::size_t> SpecNames::find(const SpecEntry& entry) const {
  const auto [written, element] = without_element(entry);
  const auto name = as_hugging_face(written);
  const auto [pattern, layer] = pattern_of(name);
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
  return {found->second[static_cast<std::size_t>(*layer)]};
}

void SpecNames::refuse(const SpecEntry& entry, const std::string& name) const {
  const auto word = pattern_of(name).name.substr(0, 200);
  std::string best;
  std::size_t least = std::max<std::size_t>(2, word.size() / 3) + 1;
  const auto consider = [&](const std::string& candidate) {
    const auto distance = edit_distance(word, candidate);
    if (distance < least) std::tie(best, least) = std::pair(candidate, distance);
  };
  for (const auto& [pattern, targets] : by_pattern_) consider(pattern);
  for (const char* of_o : {"o_proj_weight", "shard_o_proj_weight"})
    consider(fmt::format("{}*.self_attn.{}", layers, of_o));
  fail(ExitCode::bad_input, "{}: the model has no weight or module '{}'{}", entry.where,
       excerpt(name), best.empty() ? "" : fmt::format("; did you mean '{}'?", best));
}

}  // namespace llamesh::sharding
