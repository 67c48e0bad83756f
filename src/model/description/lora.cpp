#include "model/description/lora.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "model/description/family.hpp"

namespace llamesh::model {
namespace {

constexpr std::string_view all_linear = "all-linear";

/// Returns true if the target is the module's name or its last parts, with wildcards.
bool names_module(const std::string& target, const std::string& module) {
  return target == all_linear || fnmatch(target.c_str(), module.c_str(), 0) == 0 ||
         fnmatch(("*." + target).c_str(), module.c_str(), 0) == 0;
}

std::string_view last_part(std::string_view module) {
  return module.substr(module.rfind('.') + 1);
}

bool is_linear(const Parameter& p) {
  return (p.role == Role::column || p.role == Role::row || p.role == Role::latent) &&
         p.shape.size() == 2;
}

/// A table's modules, without adapters, by their names in the family's folders: these may have
/// several linear layers as one, as GPT-2's have q, k and v.
class FolderModules {
 public:
  FolderModules(const ParameterTable& table, const ModelConfig& config) : table_(table) {
    for (const auto& tensor : family_named(config.family).state_dict(config, table)) {
      const auto first = tensor.parts.front().parameter;
      const auto is_other = [&](const StoredPart& part) { return part.parameter != first; };
      if (std::ranges::none_of(tensor.parts, is_other)) continue;
      for (const auto& part : tensor.parts)
        fused_[part.parameter] = tensor.name.substr(0, tensor.name.rfind('.'));
    }
  }
  bool is_fused(ParameterId weight) const { return fused_.contains(weight); }
  /// Returns a parameter's module.
  const std::string& of(ParameterId id) const {
    const auto found = fused_.find(id);
    return found != fused_.end() ? found->second : table_[table_[id].module].name;
  }
  /// Returns true if a target names a module.
  bool have(const std::string& target) const {
    return std::ranges::any_of(table_.modules, [&](const Module& module) {
      return names_module(target,
                          module.parameters.empty() ? module.name : of(module.parameters.front()));
    });
  }

 private:
  const ParameterTable& table_;
  std::map<ParameterId, std::string> fused_;
};

/// Refuses a target that matches no linear layer; says why if it names something else.
void check_target(const std::string& target, const ParameterTable& table,
                  const FolderModules& modules, const ModelConfig& config) {
  std::set<std::string> linear, other;
  std::map<std::string, std::string> parts;  // in a fused layer -> its name
  for (std::size_t i = 0; i < table.parameters.size(); ++i) {
    const auto& p = table.parameters[i];
    const auto& module = modules.of(static_cast<ParameterId>(i));
    if (is_linear(p) && names_module(target, module)) return;
    (is_linear(p) ? linear : other).emplace(last_part(module));
    const auto& part = table[p.module].name;
    if (part != module && names_module(target, part))
      parts.emplace(last_part(part), last_part(module));
  }
  if (!parts.empty()) {
    const auto& [part, whole] = *parts.begin();
    fail(ExitCode::bad_input,
         "model.lora.targets: '{}' includes {}, which folders of the family {} have within {}, as "
         "one layer with one adapter; name {}",
         excerpt(target), part, config.family, whole, whole);
  }
  const auto known = fmt::format("{}", fmt::join(linear, ", "));
  validate(!other.contains(target),
           "model.lora.targets: {} takes no adapter; the linear layers that do are {}",
           excerpt(target), known);
  fail(ExitCode::bad_input,
       "model.lora.targets: '{}' matches no linear layer of the model, which has {}{}",
       excerpt(target), known, did_you_mean(target, {linear.begin(), linear.end()}));
}

/// `layer` is the layer's name.
Parameter a_of(const Parameter& weight, const std::string& layer, const Lora& lora) {
  Parameter a = weight;
  a.name = layer + std::string(lora_a_suffix);
  a.shape = {lora.rank, weight.shape[1]};
  a.initial = lora.init == LoraInit::gaussian ? Initial::normal_by_rank : Initial::kaiming_uniform;
  if (weight.role != Role::row) {
    a.role = Role::adapter;
    a.blocks = {};
  }
  return a;
}

Parameter b_of(const Parameter& weight, const std::string& module, const Lora& lora) {
  Parameter b = weight;
  b.name = module + std::string(lora_b_suffix);
  b.shape = {weight.shape[0], lora.rank};
  b.initial = Initial::zeros;
  if (weight.role == Role::row) {
    b.role = Role::adapter;
    b.blocks = {};
  }
  return b;
}

std::optional<ops::CodeFormat> codes_of(const Parameter& parameter, BaseDType base) {
  const bool is_experts =
      parameter.role == Role::expert_column || parameter.role == Role::expert_row;
  if (!is_linear(parameter) && !(is_experts && parameter.is_matrix())) return {};
  if (base == BaseDType::int8) return ops::CodeFormat::int8_by_64;
  if (base == BaseDType::nf4) return ops::CodeFormat::nf4;
  return {};
}

/// Copies a table, parameter by parameter.
class TableCopy {
 public:
  TableCopy(const ParameterTable& from, BaseDType base) : to_(from), base_(base) {
    to_.parameters.clear();
    for (auto& module : to_.modules) module.parameters.clear();
  }
  void add(const Parameter& parameter) {
    to_.modules[index(parameter.module)].parameters.push_back(
        static_cast<ParameterId>(to_.parameters.size()));
    to_.parameters.push_back(parameter);
  }
  /// Adds the next parameter of the original, which stays as it is.
  void copy(Parameter parameter) {
    moved_.push_back(static_cast<ParameterId>(to_.parameters.size()));
    parameter.frozen = true;
    parameter.codes = codes_of(parameter, base_);
    add(parameter);
  }
  ParameterTable table() {
    const auto move = [&](ParameterId& id) { id = moved_[index(id)]; };
    for (auto* module : {&to_.embed_tokens, &to_.norm, &to_.lm_head}) {
      move(module->weight);
      if (module->bias) move(*module->bias);
    }
    if (to_.positions) move(to_.positions->weight);
    return std::move(to_);
  }

 private:
  ParameterTable to_;
  BaseDType base_;
  std::vector<ParameterId> moved_;  ///< new id by old one
};

/// Returns how PEFT's folders store the B beside a layer's weight.
StateDictTensor with_b(StateDictTensor tensor, const std::map<ParameterId, Adapter>& adapters,
                       const ParameterTable& table) {
  if (tensor.parts.front().transposed) tensor = with_exchanged_dims(std::move(tensor));
  const auto a = adapters.at(tensor.parts.front().parameter).a;
  tensor.name = table[a].name;
  tensor.name.replace(tensor.name.rfind(lora_a_suffix), lora_a_suffix.size(), lora_b_suffix);
  const auto rank = table[a].shape[0];
  tensor.shape[1] = rank;
  for (auto& part : tensor.parts) {
    part.parameter = adapters.at(part.parameter).b;
    part.in_tensor.shape[1] = part.in_parameter.shape[1] = rank;
  }
  return tensor;
}

/// Returns the layer's name and a dot; empty outside the layers.
std::string_view layer_of(const ParameterTable& table, const Parameter& p) {
  if (!p.name.starts_with(table.layer_prefix)) return {};
  return std::string_view(p.name).substr(0, p.name.find('.', table.layer_prefix.size()) + 1);
}

}  // namespace

bool is_adapter(const Parameter& parameter) {
  return parameter.name.ends_with(lora_a_suffix) || parameter.name.ends_with(lora_b_suffix);
}

ParameterTable with_adapters(const ParameterTable& base, const ModelConfig& config) {
  const auto& lora = *config.lora;
  validate(!lora.targets.empty(), "model.lora.targets is empty; name linear layers or all-linear");
  const FolderModules modules(base, config);
  for (const auto& target : lora.targets) check_target(target, base, modules, config);
  const auto is_target = [&](ParameterId id) {
    const auto names = [&](const auto& target) { return names_module(target, modules.of(id)); };
    return is_linear(base[id]) && std::ranges::any_of(lora.targets, names);
  };
  TableCopy copy(base, lora.base);
  std::vector<ParameterId> adapted;  // weights of the decoder layer
  const auto add_adapters = [&] {
    std::set<std::string_view> fused;  // layers whose A is there
    for (const auto id : adapted) {
      auto a = a_of(base[id], modules.of(id), lora);
      if (modules.is_fused(id)) a.module = base[base[id].module].parent;
      if (!modules.is_fused(id) || fused.insert(modules.of(id)).second) copy.add(a);
    }
    for (const auto id : adapted) copy.add(b_of(base[id], base[base[id].module].name, lora));
    adapted.clear();
  };
  std::string_view layer;
  for (std::size_t i = 0; i < base.parameters.size(); ++i) {
    const auto& p = base.parameters[i];
    if (const auto now = layer_of(base, p); now != layer) {
      add_adapters();
      layer = now;
    }
    copy.copy(p);
    if (is_target(static_cast<ParameterId>(i))) adapted.push_back(static_cast<ParameterId>(i));
  }
  add_adapters();
  return copy.table();
}

std::vector<std::string> drop_absent_targets(ModelConfig& config) {
  const auto table = parameter_table(config.base());
  const FolderModules modules(table, config);
  const auto is_absent = [&](const std::string& target) { return !modules.have(target); };
  auto& targets = config.lora->targets;
  std::vector<std::string> absent;
  std::ranges::copy_if(targets, std::back_inserter(absent), is_absent);
  if (absent.size() == targets.size()) return {};
  std::erase_if(targets, is_absent);
  return absent;
}

std::vector<ParameterId> base_parameters(const ParameterTable& table) {
  std::vector<ParameterId> ids;
  for (std::size_t i = 0; i < table.parameters.size(); ++i)
    if (!is_adapter(table.parameters[i])) ids.push_back(static_cast<ParameterId>(i));
  return ids;
}

std::map<ParameterId, Adapter> adapters_by_weight(const ParameterTable& table) {
  std::map<ParameterId, Adapter> adapters;
  for (const auto& module : table.modules) {
    if (module.parameters.empty()) continue;
    const auto layer = table.weight_module(module.parent, last_part(module.name));
    if (layer.adapter && !is_adapter(table[layer.weight]))
      adapters.emplace(layer.weight, *layer.adapter);
  }
  return adapters;
}

StateDict adapter_state_dict(const ModelConfig& config, const ParameterTable& table) {
  const auto adapters = adapters_by_weight(table);
  std::map<ParameterId, StateDictTensor> of_b;  // by the B of the tensor's first part
  for (const auto& tensor : state_dict(config, table))
    if (const auto first = adapters.find(tensor.parts.front().parameter); first != adapters.end())
      of_b.emplace(first->second.b, with_b(tensor, adapters, table));
  StateDictBuilder dict(table);
  for (std::size_t i = 0; i < table.parameters.size(); ++i) {
    const auto id = static_cast<ParameterId>(i);
    if (table[id].name.ends_with(lora_a_suffix)) dict.plain(id);
    if (const auto b = of_b.find(id); b != of_b.end()) dict.add(std::move(b->second));
  }
  return dict.take();
}

/// Adds up siblings that are column-parallel: they share their input.
std::int64_t adapter_columns(const ParameterTable& table) {
  std::map<ModuleId, std::set<ParameterId>> shared;  // A's by the layers' parent
  std::int64_t columns = 0;
  for (const auto& [weight, adapter] : adapters_by_weight(table)) {
    const auto rank = table[adapter.a].shape[0];
    auto& as = shared[table[table[weight].module].parent];
    if (table[weight].role != Role::row) as.insert(adapter.a);
    columns = std::max(columns, rank * std::max<std::int64_t>(std::ssize(as), 1));
  }
  return columns;
}

bool is_peft_folder(const std::filesystem::path& folder) {
  std::error_code error;
  return std::filesystem::exists(folder / adapter_config_name, error);
}

Lora read_adapter_config(const std::filesystem::path& folder) {
  const auto path = folder / adapter_config_name;
  validate(is_peft_folder(folder), "{} is not a PEFT folder: it has no {}", folder.string(),
           adapter_config_name);
  const auto json = parse_json_object(read_file(path, std::int64_t{1} << 20U), path.string());
  return parse_adapter_config(ConfigKeys(json, path.string()));
}

namespace {

/// Refuses adapters that are more than A and B beside some linear layers of every decoder layer.
void refuse_variants(const ConfigKeys& keys) {
  const auto refuse = [&](bool wrong, const char* key, const char* computed) {
    validate(!wrong, "{}: {} is {}; llamesh computes {}", keys.name(), key, keys.shown(key),
             computed);
  };
  const auto peft_type = keys.text("peft_type");
  refuse(peft_type != "LORA" && !peft_type.empty(), "peft_type", "LORA only");
  for (const auto* key : {"use_dora", "use_qalora", "use_bdlora", "lora_bias"}) {
    const auto* value = keys.find(key);
    refuse(value != nullptr && *value != false, key, "plain LoRA only");
  }
  for (const auto* key :
       {"rank_pattern", "alpha_pattern", "modules_to_save", "layers_to_transform", "layers_pattern",
        "exclude_modules", "target_parameters", "layer_replication", "trainable_token_indices",
        "alora_invocation_tokens"}) {
    const auto* value = keys.find(key);
    refuse(value != nullptr && !value->empty(), key, "adapters that are alike in all layers");
  }
  const auto bias = keys.text("bias");
  refuse(bias != "none" && !bias.empty(), "bias", "none");
  const auto* init = keys.find("init_lora_weights");
  refuse(init != nullptr && !init->is_boolean() && *init != "gaussian", "init_lora_weights",
         "true, false and gaussian, which leave the base model as it is");
}

/// Keys that leave the adapters as they are: where they come from, how they were initialized, and
/// dropout, which users set anew.
constexpr std::string_view harmless_adapter_keys[] = {
    "auto_mapping", "base_model_name_or_path", "corda_config",    "ensure_weight_tying",
    "eva_config",   "fan_in_fan_out",          "inference_mode",  "loftq_config",
    "lora_dropout", "lora_ga_config",          "megatron_config", "megatron_core",
    "peft_version", "qalora_group_size",       "revision",        "runtime_config",
    "task_type"};

std::vector<std::string> targets_of(const ConfigKeys& keys) {
  const auto* targets = keys.find("target_modules");
  if (targets != nullptr && *targets == all_linear) return {std::string(all_linear)};
  const bool is_list = targets != nullptr && targets->is_array() && !targets->empty() &&
                       std::ranges::all_of(*targets, [](const auto& t) { return t.is_string(); });
  validate(is_list, "{}: target_modules is {}; llamesh reads a list of names, or all-linear",
           keys.name(), keys.shown("target_modules"));
  auto names = targets->get<std::vector<std::string>>();
  std::ranges::sort(names);  // PEFT writes a set
  return names;
}

}  // namespace

Lora parse_adapter_config(const ConfigKeys& keys) {
  refuse_variants(keys);
  const auto* init = keys.find("init_lora_weights");
  Lora lora{.rank = keys.size("r"),
            .alpha = keys.number("lora_alpha"),
            .targets = targets_of(keys),
            .rslora = keys.flag("use_rslora"),
            .init = init != nullptr && *init == "gaussian" ? LoraInit::gaussian
                                                           : LoraInit::kaiming_uniform};
  keys.refuse_unknown(harmless_adapter_keys);
  return lora;
}

nlohmann::ordered_json to_adapter_config(const Lora& lora) {
  nlohmann::ordered_json json = {
      {"peft_type", "LORA"},       {"task_type", "CAUSAL_LM"}, {"r", lora.rank},
      {"lora_alpha", lora.alpha},  {"lora_dropout", 0.0},      {"target_modules", lora.targets},
      {"use_rslora", lora.rslora}, {"bias", "none"},           {"fan_in_fan_out", false},
      {"inference_mode", true}};
  json["init_lora_weights"] = true;
  if (lora.init == LoraInit::gaussian) json["init_lora_weights"] = "gaussian";
  if (lora.targets == std::vector<std::string>{std::string(all_linear)})
    json["target_modules"] = all_linear;
  return json;
}

}  // namespace llamesh::model
