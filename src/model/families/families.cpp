#include "model/description/family.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "model/description/lora.hpp"

namespace llamesh::model {
namespace {

std::vector<const Family*>& known_families() {
  static std::vector<const Family*> known = [] {
    std::vector<const Family*> all;
    for (const auto of : {llama_families(), deepseek_families()})
      for (const auto& family : of) all.push_back(&family);
    all.push_back(&gpt2_family);
    return all;
  }();
  return known;
}

}  // namespace

std::span<const Family* const> families() {
  return known_families();
}

const Family& family_named(std::string_view name) {
  const auto found = std::ranges::find(families(), name, &Family::name);
  if (found != families().end()) return **found;
  std::vector<std::string_view> names;
  for (const auto* family : families()) names.push_back(family->name);
  fail(ExitCode::bad_input, "model.family '{}' is unknown; known: {}", excerpt(name),
       fmt::join(names, ", "));
}

ParameterTable parameter_table(const ModelConfig& config) {
  auto table = family_named(config.family).make_table(config);
  return config.lora ? with_adapters(table, config) : table;
}

StateDict state_dict(const ModelConfig& config, const ParameterTable& table) {
  const auto& family = family_named(config.family);
  if (!config.lora) return family.state_dict(config, table);
  // Folders know no adapters: they are those of the base model, whose parameters keep their names.
  const auto base = family.make_table(config);
  auto dict = family.state_dict(config, base);
  std::map<std::string_view, ParameterId> ids;
  for (std::size_t i = 0; i < table.parameters.size(); ++i)
    ids[table.parameters[i].name] = static_cast<ParameterId>(i);
  for (auto& tensor : dict)
    for (auto& part : tensor.parts) part.parameter = ids.at(base[part.parameter].name);
  return dict;
}

ModelTraits traits_of(const ModelConfig& config) {
  return family_named(config.family).traits(config);
}

ScopedFamily::ScopedFamily(const Family& family) {
  known_families().push_back(&family);
}

ScopedFamily::~ScopedFamily() {
  known_families().pop_back();
}

}  // namespace llamesh::model
