#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/description/config_keys.hpp"
#include "model/description/model_config.hpp"
#include "model/description/parameters.hpp"
#include "model/description/state_dict.hpp"

/// LoRA adapters in a model's table: beside a linear layer's weight (out, in), its module gets
/// lora_A (r, in) and lora_B (out, r). Linear layers that are one in the family's folders share
/// their A, as PEFT's adapter of that layer has it; it is in their parent module.
namespace llamesh::model {

/// Ends of the adapters' names; the module's name comes before them, as in PEFT's folders.
inline constexpr std::string_view lora_a_suffix = ".lora_A.weight";
inline constexpr std::string_view lora_b_suffix = ".lora_B.weight";

/// Returns true for A and B.
bool is_adapter(const Parameter& parameter);

/// Returns the table, frozen, with the codes of config.lora.base, and with the adapters after the
/// other parameters of their layer: all A's in the layers' order, so that those which read the same
/// input are neighbors, then all B's. Along the axis `tensor` they divide with their weight: B of a
/// `column` weight by dim 0, A of a `row` weight by dim 1. Throws a user error for a target that
/// matches no linear layer, or only a part of one in the family's folders. Pure.
ParameterTable with_adapters(const ParameterTable& base, const ModelConfig& config);

/// Removes the targets of config.lora that name nothing in the model, and returns them: PEFT
/// accepts such beside others in a folder's target_modules. Leaves them if all are.
std::vector<std::string> drop_absent_targets(ModelConfig& config);

/// Returns the ids of the parameters that are no adapters, by their ids in the table without
/// adapters.
std::vector<ParameterId> base_parameters(const ParameterTable& table);

/// Returns the weights that have adapters, with these.
std::map<ParameterId, Adapter> adapters_by_weight(const ParameterTable& table);

/// Returns how PEFT's folders store the adapters of a resolved config's table: those of each layer
/// in the family's folders, and B with the rows in the order of its weight's there. Pure.
StateDict adapter_state_dict(const ModelConfig& config, const ParameterTable& table);

/// Returns the columns of x A^T of the adapters that share an input x, at most; 0 without adapters.
std::int64_t adapter_columns(const ParameterTable& table);

/// The options of a PEFT folder's adapters.
inline constexpr std::string_view adapter_config_name = "adapter_config.json";
bool is_peft_folder(const std::filesystem::path& folder);
/// Reads FOLDER/adapter_config.json. Throws a user error that names a key whose value llamesh does
/// not compute.
Lora read_adapter_config(const std::filesystem::path& folder);
/// Reads its keys.
Lora parse_adapter_config(const ConfigKeys& keys);
/// Returns them; PEFT loads adapter_config.json from them and the base model's name.
nlohmann::ordered_json to_adapter_config(const Lora& lora);

}  // namespace llamesh::model
