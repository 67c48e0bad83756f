#include "model/description/table_builder.hpp"

#include <fmt/format.h>

namespace llamesh::model {

TableBuilder::TableBuilder(Initial norm_weight) : norm_weight_(norm_weight) {
  table_.root = module("", ModuleId{0});
}

ModuleId TableBuilder::module(std::string name, ModuleId parent) {
  table_.modules.push_back({std::move(name), parent});
  return static_cast<ModuleId>(table_.modules.size() - 1);
}

ModuleId TableBuilder::child(ModuleId parent, std::string_view name) {
  const auto& prefix = table_[parent].name;
  return module(prefix.empty() ? std::string(name) : fmt::format("{}.{}", prefix, name), parent);
}

ModuleId TableBuilder::layer(ModuleId layers, std::int64_t index) {
  table_.layer_prefix = table_[layers].name + '.';
  table_.layers.push_back(module(fmt::format("{}{}", table_.layer_prefix, index), layers));
  return table_.layers.back();
}

WeightModule TableBuilder::linear(ModuleId parent, std::string_view name, Shape shape, Role role,
                                  Blocks blocks, Initial initial) {
  const auto m = child(parent, name);
  return {m, parameter(m, "weight", std::move(shape), initial, role, blocks)};
}

void TableBuilder::bias(const WeightModule& linear) {
  const auto weight = table_[linear.weight];
  parameter(linear.module, "bias", {weight.shape[0]}, Initial::zeros, weight.role, weight.blocks);
}

WeightModule TableBuilder::norm(ModuleId parent, std::string_view name, std::int64_t size,
                                Role role, Blocks blocks) {
  const auto m = child(parent, name);
  return {m, parameter(m, "weight", {size}, norm_weight_, role, blocks)};
}

WeightModule TableBuilder::layer_norm(ModuleId parent, std::string_view name, std::int64_t size,
                                      bool has_bias) {
  auto added = norm(parent, name, size, Role::layer_norm);
  added.centers = true;
  if (has_bias)
    added.bias = parameter(added.module, "bias", {size}, Initial::zeros, Role::layer_norm);
  return added;
}

void TableBuilder::positions(ModuleId parent, std::string_view name, Shape shape) {
  table_.positions = linear(parent, name, std::move(shape), Role::replicated, {});
}

WeightModule TableBuilder::tied(ModuleId parent, std::string_view name, const WeightModule& to) {
  return {child(parent, name), to.weight};
}

ParameterId TableBuilder::parameter(ModuleId m, std::string_view name, Shape shape, Initial initial,
                                    Role role, Blocks blocks) {
  const auto id = static_cast<ParameterId>(table_.parameters.size());
  auto& module = table_.modules[index(m)];
  table_.parameters.push_back(
      {fmt::format("{}.{}", module.name, name), std::move(shape), m, initial, role, blocks});
  module.parameters.push_back(id);
  return id;
}

ParameterId TableBuilder::experts(ModuleId module, std::string_view name, Shape shape,
                                  std::int64_t per_token, Role role, Blocks blocks) {
  const auto count = shape.front();
  const auto initial = shape.size() == 3 ? Initial::normal : Initial::zeros;
  const auto id = parameter(module, name, std::move(shape), initial, role, blocks);
  table_.parameters.back().taken = {per_token, count};
  return id;
}

ParameterTable TableBuilder::table(const WeightModule& embed_tokens, const WeightModule& norm,
                                   const WeightModule& lm_head) {
  table_.embed_tokens = embed_tokens;
  table_.norm = norm;
  table_.lm_head = lm_head;
  return std::move(table_);
}

}  // namespace llamesh::model
