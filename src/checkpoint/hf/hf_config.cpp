#include "checkpoint/hf/hf_config.hpp"

#include <cmath>

#include "checkpoint/hf/hf_json.hpp"
#include "checkpoint/hf/safetensors.hpp"
#include "core/error.hpp"
#include "core/file.hpp"

namespace llamesh::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

/// Limit far above every model and far below sizes whose product would overflow.
constexpr std::int64_t max_size = std::int64_t{1} << 24U;

/// Keys in a config.json object. A null key counts as absent.
class Keys {
 public:
  Keys(const Json& json, std::string name) : json_(json), name_(std::move(name)) {}

  const Json* find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  const Json& get(const char* key) const {
    const auto* found = find(key);
    validate(found != nullptr, "{}: {} is missing", name_, key);
    return *found;
  }
  std::int64_t size(const char* key) const {
    const auto& value = get(key);
    validate(value.is_number_integer(), "{}: {}: expected an integer, got {}", name_, key,
             text_of(value));
    // A number above int64's range is negative after get<>, so it is refused as well.
    const auto number = value.get<std::int64_t>();
    validate(number >= 1 && number <= max_size, "{}: {} is {}; allowed: 1 to {}", name_, key,
             text_of(value), max_size);
    return number;
  }
  double number(const char* key) const {
    const auto& value = get(key);
    validate(value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() > 0,
             "{}: {}: expected a number above 0, got {}", name_, key, text_of(value));
    return value.get<double>();
  }
  double number(const char* key, double otherwise) const {
    return find(key) ? number(key) : otherwise;
  }
  bool flag(const char* key) const {
    const auto* value = find(key);
    validate(value == nullptr || value->is_boolean(), "{}: {}: expected true or false, got {}",
             name_, key, value ? text_of(*value) : "");
    return value != nullptr && value->get<bool>();
  }
  std::string text(const char* key) const {
    const auto* value = find(key);
    validate(value == nullptr || value->is_string(), "{}: {}: expected a string, got {}", name_,
             key, value ? text_of(*value) : "");
    return value ? value->get<std::string>() : std::string();
  }
  const std::string& name() const { return name_; }

  static std::string text_of(const Json& value) {
    return shown(value.dump(-1, ' ', true, Json::error_handler_t::replace));
  }

 private:
  const Json& json_;
  std::string name_;
};

void refuse_other_models(const Keys& keys) {
  const auto type = keys.text("model_type");
  const auto* architectures = keys.find("architectures");
  const Json llama = Json::array({"LlamaForCausalLM"});
  validate(architectures == nullptr ? type == "llama" : *architectures == llama,
           "{}: architectures is {}; llamesh trains LlamaForCausalLM", keys.name(),
           architectures ? Keys::text_of(*architectures) : "missing");
  validate(type.empty() || type == "llama", "{}: model_type is '{}'; llamesh trains llama",
           keys.name(), shown(type));
  const auto activation = keys.text("hidden_act");
  validate(activation.empty() || activation == "silu",
           "{}: hidden_act is '{}'; llamesh computes silu", keys.name(), shown(activation));
  for (const auto* bias : {"attention_bias", "mlp_bias"})
    validate(!keys.flag(bias), "{}: {} is true; llamesh has no biases", keys.name(), bias);
  validate(keys.find("quantization_config") == nullptr,
           "{}: quantization_config is set; llamesh reads F32, BF16 and F16 weights only",
           keys.name());
  const auto* dropout = keys.find("attention_dropout");
  validate(dropout == nullptr || *dropout == 0, "{}: attention_dropout is {}; llamesh has none",
           keys.name(), dropout ? Keys::text_of(*dropout) : "");
}

/// Reads the RoPE parameters: rope_parameters in transformers 5, or rope_scaling in older versions.
void read_rope(const Keys& keys, model::LlamaConfig& c) {
  c.rope_theta = keys.number("rope_theta", c.rope_theta);
  const char* const key = keys.find("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const auto* value = keys.find(key);
  if (value == nullptr) return;
  validate(value->is_object(), "{}: {}: expected an object, got {}", keys.name(), key,
           Keys::text_of(*value));
  const Keys rope(*value, keys.name() + ": " + key);
  c.rope_theta = rope.number("rope_theta", c.rope_theta);
  const auto type = rope.text(rope.find("rope_type") ? "rope_type" : "type");
  if (type == "default") return;
  validate(type == "llama3", "{}: rope_type is '{}'; llamesh computes default and llama3",
           rope.name(), shown(type));
  c.rope_scaling = model::RopeScaling{rope.number("factor"), rope.number("low_freq_factor"),
                                      rope.number("high_freq_factor"),
                                      rope.size("original_max_position_embeddings")};
}

}  // namespace

model::LlamaConfig parse_config_json(const std::string& text, const std::string& name) {
  const Json json = parse_json(text, name);
  const Keys keys(json, name);
  refuse_other_models(keys);
  model::LlamaConfig c;
  c.hidden_size = keys.size("hidden_size");
  c.intermediate_size = keys.size("intermediate_size");
  c.num_hidden_layers = keys.size("num_hidden_layers");
  c.num_attention_heads = keys.size("num_attention_heads");
  if (keys.find("num_key_value_heads")) c.num_key_value_heads = keys.size("num_key_value_heads");
  if (keys.find("head_dim")) c.head_dim = keys.size("head_dim");
  c.vocab_size = keys.size("vocab_size");
  // transformers' default in LlamaConfig.
  c.rms_norm_eps = keys.number("rms_norm_eps", 1e-6);
  c.initializer_range = keys.number("initializer_range", 0.02);
  c.tie_word_embeddings = keys.flag("tie_word_embeddings");
  read_rope(keys, c);
  try {
    return c.resolved();
  } catch (const Error& error) {
    fail(error.code(), "{}: {}", name, error.what());
  }
}

model::LlamaConfig read_hf_config(const std::filesystem::path& folder) {
  const auto path = folder / "config.json";
  return parse_config_json(read_file(path, std::int64_t{1} << 20U), path.string());
}

std::string to_config_json(const model::LlamaConfig& c, const std::string& dtype,
                           const std::string& base) {
  Json j = base.empty() ? Json::object() : parse_json(base, "config.json");
  for (const auto* key : {"rope_parameters", "rope_scaling", "dtype", "torch_dtype"}) j.erase(key);
  j.update({{"architectures", {"LlamaForCausalLM"}},
            {"model_type", "llama"},
            {"hidden_act", "silu"},
            {"hidden_size", c.hidden_size},
            {"intermediate_size", c.intermediate_size},
            {"num_hidden_layers", c.num_hidden_layers},
            {"num_attention_heads", c.num_attention_heads},
            {"num_key_value_heads", c.num_key_value_heads},
            {"head_dim", c.head_dim},
            {"vocab_size", c.vocab_size},
            {"rms_norm_eps", c.rms_norm_eps},
            {"rope_theta", c.rope_theta},
            {"tie_word_embeddings", c.tie_word_embeddings},
            {"initializer_range", c.initializer_range},
            {"attention_bias", false},
            {"mlp_bias", false}});
  if (!dtype.empty()) j["torch_dtype"] = dtype;
  if (c.rope_scaling)
    j["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", c.rope_scaling->factor},
        {"low_freq_factor", c.rope_scaling->low_freq_factor},
        {"high_freq_factor", c.rope_scaling->high_freq_factor},
        {"original_max_position_embeddings", c.rope_scaling->original_max_position_embeddings}};
  return j.dump(2);
}

std::string to_config_json(const model::LlamaConfig& config) {
  return to_config_json(config, "", "");
}

}  // namespace llamesh::checkpoint
