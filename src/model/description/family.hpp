#pragma once

#include <nlohmann/json.hpp>

#include <span>
#include <string_view>
#include <vector>

#include "model/description/config_keys.hpp"
#include "model/description/key_list.hpp"
#include "model/description/model_config.hpp"
#include "model/description/parameters.hpp"
#include "model/description/state_dict.hpp"
#include "model/description/traits.hpp"

namespace llamesh::model {

/// A model family: everything that llamesh knows about one architecture. A family whose layer is
/// Llama's is a row in families/llama.cpp. Any other has a file families/NAME.cpp, and is declared
/// below and listed in families/families.cpp. CausalLM, Decoder and everything above them know no
/// family.
struct Family {
  std::string_view name;          ///< model.family in input files, model_type in config.json
  std::string_view architecture;  ///< the entry of `architectures` in config.json
  /// Another one, which is read beside this `name` only; empty: none.
  std::string_view other_architecture = {};

  /// Begins the names of all tensors but the head's; a folder of the bare model omits it.
  std::string_view base_prefix;

  /// Reads config.json's keys. Throws a user error that names a key whose value changes the
  /// mathematics in a way that the family does not compute.
  void (*read_config)(const ConfigKeys& keys, ModelConfig& config);
  /// Adds the keys that transformers needs to build the same model.
  void (*write_config)(const ModelConfig& config, nlohmann::ordered_json& json);
  /// The keys in model_keys that the family takes. Others are refused unless they have their
  /// defaults.
  KeyList keys;
  /// Throws a user error that names a value, in a config that is resolved but for this check, that
  /// the family cannot compute.
  void (*check)(const ModelConfig& config);
  /// Returns the table of a resolved config. Pure.
  ParameterTable (*make_table)(const ModelConfig& config);
  /// Returns what the layers compute beyond their parameters. Pure.
  ModelTraits (*traits)(const ModelConfig& config);
  /// Folders may have layers behind the last one, which predict further tokens. They are left out.
  bool has_prediction_layers = false;
  /// So may tensors whose names begin with this; empty: there are none.
  std::string_view prediction_prefix = {};
  /// Returns how the family's folders store the parameters of a resolved config's whole table.
  /// Pure.
  StateDict (*state_dict)(const ModelConfig& config, const ParameterTable& table) =
      [](const ModelConfig&, const ParameterTable& table) { return plain_state_dict(table); };
  /// Returns what else they store. Pure.
  std::vector<StoredConstant> (*constants)(const ParameterTable& table) =
      [](const ParameterTable&) { return std::vector<StoredConstant>(); };
};

/// Returns Llama and the families that differ from it by switches.
std::span<const Family> llama_families();
/// Returns those with latent attention.
std::span<const Family> deepseek_families();
extern const Family gpt2_family;  ///< GPT-2, minGPT and GPT-3's shapes

/// Returns the families that this build knows.
std::span<const Family* const> families();

/// Returns the family with this name. Throws a user error that lists the known ones.
const Family& family_named(std::string_view name);

/// Returns how a folder of the config's family stores the parameters of its table. Pure.
StateDict state_dict(const ModelConfig& config, const ParameterTable& table);

/// Makes one more family known for this object's lifetime, as a test does. `family` is borrowed.
class ScopedFamily {
 public:
  explicit ScopedFamily(const Family& family);
  ~ScopedFamily();
  ScopedFamily(const ScopedFamily&) = delete;
  ScopedFamily& operator=(const ScopedFamily&) = delete;
};

}  // namespace llamesh::model
