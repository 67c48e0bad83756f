#include "model/description/parameters.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>

#include "core/error.hpp"
#include "model/description/lora.hpp"

namespace llamesh::model {

std::optional<float> constant(Initial initial) {
  switch (initial) {
    case Initial::zeros:
      return 0.0F;
    case Initial::ones:
      return 1.0F;
    case Initial::xielu_p:
      return std::log(std::expm1(0.8F));
    case Initial::xielu_n:
      return std::log(std::expm1(0.3F));
    default:
      return {};
  }
}

std::optional<std::size_t> divided_dim(const Parameter& parameter) {
  if (parameter.blocks.count == 0) return {};
  if (is_stacked(parameter.role))
    return std::size_t{parameter.role == Role::expert_column ? 1U : 2U};  // of an expert_bias: none
  if (parameter.role != Role::row) return 0;
  return parameter.shape.size() > 1 ? std::optional<std::size_t>(1) : std::nullopt;
}

std::optional<std::size_t> residual_dim(const Parameter& parameter) {
  const bool is_vector = parameter.shape.size() == 1;
  const bool is_norm = parameter.role == Role::norm || parameter.role == Role::layer_norm;
  if (is_norm || (parameter.role == Role::row && is_vector)) return 0;
  return {};
}

std::int64_t ParameterTable::numel() const {
  std::int64_t n = 0;
  for (const auto& p : parameters) n += p.numel();
  return n;
}

std::int64_t ParameterTable::active_numel() const {
  std::int64_t n = 0;
  for (const auto& p : parameters) n += p.active_numel();
  return n;
}

bool ParameterTable::multiplies(ParameterId id) const {
  const bool is_position = positions && id == positions->weight;
  return !is_position && (id != embed_tokens.weight || tied());
}

std::int64_t ParameterTable::matmul_numel() const {
  std::int64_t n = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (multiplies(static_cast<ParameterId>(i))) n += parameters[i].active_numel();
  return n;
}

bool ParameterTable::is_linear(ParameterId id) const {
  using enum Role;
  const Parameter& p = (*this)[id];
  const auto role = p.role;
  return p.is_matrix() && p.name.starts_with(layer_prefix) &&
         (role == column || role == row || role == latent || role == replicated ||
          role == expert_column || role == expert_row);
}

std::int64_t ParameterTable::trained_numel() const {
  std::int64_t n = 0;
  for (const auto& p : parameters) n += p.frozen ? 0 : p.numel();
  return n;
}

ModuleId ParameterTable::backward_end() const {
  auto first = norm.module;
  for (const auto& p : parameters)
    if (!p.frozen) first = std::min(first, p.module);
  if (first == norm.module) return first;
  const auto after = std::ranges::upper_bound(layers, first);  // the layer that holds it is before
  return after == layers.begin() ? root : *std::prev(after);
}

std::vector<std::size_t> ParameterTable::last_of_kind() const {
  using Kind = std::vector<std::pair<std::string_view, std::vector<std::int64_t>>>;
  std::vector<Kind> kinds(layers.size());
  std::map<std::string_view, std::size_t> numbers;
  for (std::size_t i = 0; i < layers.size(); ++i) numbers[(*this)[layers[i]].name] = i;
  for (const auto& p : parameters) {
    if (!p.name.starts_with(layer_prefix)) continue;
    const auto end = p.name.find('.', layer_prefix.size());
    const auto layer = numbers.at(std::string_view(p.name).substr(0, end));
    kinds[layer].emplace_back(std::string_view(p.name).substr(end), p.shape);
  }
  std::map<Kind, std::size_t> last;
  for (std::size_t i = 0; i < kinds.size(); ++i) last[kinds[i]] = i;
  std::vector<std::size_t> of_layer;
  for (const auto& kind : kinds) of_layer.push_back(last.at(kind));
  return of_layer;
}

std::optional<ModuleId> ParameterTable::find_child(ModuleId parent, std::string_view name) const {
  const auto& prefix = (*this)[parent].name;
  for (auto m = index(parent) + 1; m < modules.size(); ++m) {
    const std::string_view full = modules[m].name;
    if (modules[m].parent == parent && full.ends_with(name) &&
        full.size() == prefix.size() + (prefix.empty() ? 0 : 1) + name.size())
      return static_cast<ModuleId>(m);
  }
  return {};
}

ModuleId ParameterTable::child(ModuleId parent, std::string_view name) const {
  const auto found = find_child(parent, name);
  expects(found.has_value(), "{} has no module {}", (*this)[parent].name, name);
  return *found;
}

WeightModule ParameterTable::weight_module(ModuleId parent, std::string_view name) const {
  const auto module = child(parent, name);
  WeightModule found{module, (*this)[module].parameters.front()};
  for (const auto id : (*this)[module].parameters) {
    const auto& name_of_one = (*this)[id].name;
    if (name_of_one.ends_with(".bias")) found.bias = id;
    if (name_of_one.ends_with(lora_a_suffix)) found.adapter.emplace(id, id);
    if (!name_of_one.ends_with(lora_b_suffix)) continue;
    if (!found.adapter) found.adapter.emplace((*this)[parent].parameters.back(), id);  // shared
    found.adapter->b = id;
  }
  found.centers = (*this)[found.weight].role == Role::layer_norm;
  return found;
}

}  // namespace llamesh::model
