#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "core/error.hpp"
#include "core/text.hpp"
#include "model/description/family.hpp"

namespace llamesh::model {
namespace {

/// A parameter with the names by which a pattern finds it. Tied weights have two.
struct Named {
  std::string name;
  ParameterId id;
  std::vector<std::string> stored;  ///< names of the tensors in a folder that hold it
};

std::vector<Named> names_of(const ParameterTable& table, const ModelConfig& config) {
  std::vector<Named> all;
  for (std::size_t i = 0; i < table.parameters.size(); ++i)
    all.push_back({table.parameters[i].name, static_cast<ParameterId>(i), {}});
  for (const auto& tensor : state_dict(config, table)) {
    std::set<ParameterId> in_tensor;
    for (const auto& part : tensor.parts) in_tensor.insert(part.parameter);
    for (const auto id : in_tensor) all[index(id)].stored.push_back(tensor.name);
  }
  if (table.tied())
    all.push_back({table[table.lm_head.module].name + ".weight", table.lm_head.weight, {}});
  return all;
}

/// Returns true if the pattern fits a weight's name or that of a module above it.
bool matches(const std::string& pattern, std::string name) {
  while (fnmatch(pattern.c_str(), name.c_str(), 0) != 0) {
    const auto dot = name.rfind('.');
    if (dot == std::string::npos) return false;
    name.resize(dot);
  }
  return true;
}

/// Like matches() for all names. A tensor in a folder that is a part of the parameter, as an expert
/// of a stack is, cannot be chosen alone.
bool matches(const std::string& pattern, const Named& parameter, const char* key) {
  if (matches(pattern, parameter.name)) return true;
  const auto count = std::ranges::count_if(
      parameter.stored, [&](const std::string& name) { return matches(pattern, name); });
  validate(
      count == 0 || count == std::ssize(parameter.stored),
      "{}: '{}' names {} of the {} tensors that are one parameter, {}; name all of them, with *",
      key, excerpt(pattern), count, parameter.stored.size(), parameter.name);
  return count > 0;
}

/// Replaces the numbers between dots with `*`.
std::string with_wildcards(std::string_view name) {
  std::string text;
  while (true) {
    const auto word = name.substr(0, name.find('.'));
    const bool is_number =
        !word.empty() && word.find_first_not_of("0123456789") == std::string_view::npos;
    text += is_number ? "*" : word;
    if (word.size() == name.size()) return text;
    text += '.';
    name.remove_prefix(word.size() + 1);
  }
}

/// Returns did_you_mean() with modules, and weights that are not a module's `weight` or `bias`.
std::string nearest_names(const std::string& pattern, const ParameterTable& table) {
  std::set<std::string> names;
  for (const auto& module : table.modules) names.insert(with_wildcards(module.name));
  for (const auto& parameter : table.parameters)
    if (!parameter.name.ends_with(".weight") && !parameter.name.ends_with(".bias"))
      names.insert(with_wildcards(parameter.name));
  names.erase("");
  auto word = with_wildcards(pattern);
  if (word.ends_with(".weight")) word.resize(word.rfind('.'));
  return did_you_mean(word, {names.begin(), names.end()});
}

/// Returns which of `all` the patterns under `key` name.
std::vector<bool> chosen(const std::vector<std::string>& patterns, const std::vector<Named>& all,
                         const ParameterTable& table, const char* key) {
  std::vector<bool> mask(all.size(), false);
  for (const auto& pattern : patterns) {
    bool matches_any = false;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!matches(pattern, all[i], key)) continue;
      mask[i] = matches_any = true;
    }
    validate(matches_any, "{}: the model has no weight or module '{}'{}", key, excerpt(pattern),
             nearest_names(pattern, table));
  }
  return mask;
}

/// Checks that both names of tied weights are frozen, or neither.
void check_tied(const std::vector<Named>& all, const std::vector<bool>& frozen) {
  const auto& head = all.back();
  const auto embedding = index(head.id);
  validate(frozen[embedding] == frozen.back(),
           "train.freeze and train.only freeze {}, but not {}, and these weights are tied; name "
           "both or neither",
           frozen.back() ? head.name : all[embedding].name,
           frozen.back() ? all[embedding].name : head.name);
}

}  // namespace

void freeze_parameters(ParameterTable& table, const ModelConfig& config,
                       const TrainedOptions& options) {
  if (options.freeze.empty() && options.only.empty()) return;
  const auto all = names_of(table, config);
  auto frozen = chosen(options.freeze, all, table, "train.freeze");
  const auto only = chosen(options.only, all, table, "train.only");
  if (!options.only.empty())
    for (std::size_t i = 0; i < all.size(); ++i) frozen[i] = frozen[i] || !only[i];
  if (table.tied()) check_tied(all, frozen);
  for (std::size_t i = 0; i < all.size(); ++i)
    table.parameters[index(all[i].id)].frozen = frozen[i];
  validate(!std::ranges::all_of(table.parameters, &Parameter::frozen),
           "train.freeze and train.only freeze all {} parameters of the model, and nothing is left "
           "to train; name fewer",
           table.parameters.size());
}

}  // namespace llamesh::model
