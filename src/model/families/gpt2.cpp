#include "core/error.hpp"
#include "core/text.hpp"
#include "model/description/family.hpp"
#include "model/description/table_builder.hpp"

namespace llamesh::model {
namespace {

constexpr LayerNames gpt2_names{.attention = "attn",
                                .o_proj = "c_proj",
                                .up_proj = "c_fc",
                                .down_proj = "c_proj",
                                .norm_before_attention = "ln_1",
                                .norm_before_mlp = "ln_2"};

void refuse_other_mathematics(const ConfigKeys& keys) {
  const auto activation = keys.text("activation_function");
  validate(activation.empty() || activation == "gelu_new" || activation == "gelu_pytorch_tanh",
           "{}: activation_function is '{}'; llamesh computes gelu_new, the tanh form", keys.name(),
           excerpt(activation));
  const auto refuse = [&](const char* key, bool computed) {
    validate(keys.flag(key, computed) == computed, "{}: {} is {}; llamesh computes {} only",
             keys.name(), key, keys.shown(key), computed);
  };
  refuse("scale_attn_weights", true);
  refuse("scale_attn_by_inverse_layer_idx", false);
  refuse("add_cross_attention", false);
}

constexpr const char* dropout_names[] = {"resid_pdrop", "embd_pdrop", "attn_pdrop"};
constexpr double default_dropout = 0.1;  // GPT2Config's

void read_gpt2_config(const ConfigKeys& keys, ModelConfig& c) {
  refuse_other_mathematics(keys);
  keys.ignore({"n_ctx", "n_special", "output_past", "predict_special_tokens",
               "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout",
               "summary_proj_to_labels", "summary_type", "summary_use_proj"});
  // transformers knows these sizes by two names.
  c.hidden_size = keys.size(keys.either("n_embd", "hidden_size"));
  c.intermediate_size = keys.size_or("n_inner", 4 * c.hidden_size);
  c.num_hidden_layers = keys.size(keys.either("n_layer", "num_hidden_layers"));
  c.num_attention_heads = keys.size(keys.either("n_head", "num_attention_heads"));
  c.vocab_size = keys.size("vocab_size");
  c.max_position_embeddings = keys.size(keys.either("n_positions", "max_position_embeddings"));
  c.layer_norm_epsilon = keys.number("layer_norm_epsilon", 1e-5);
  c.initializer_range = keys.number("initializer_range", 0.02);
  c.tie_word_embeddings = keys.flag("tie_word_embeddings", true);
  c.dropout = read_dropout(keys, dropout_names, default_dropout);
}

void write_gpt2_config(const ModelConfig& c, nlohmann::ordered_json& json) {
  for (const auto* key :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"})
    json.erase(key);  // second names
  json.update({{"activation_function", "gelu_new"},
               {"n_embd", c.hidden_size},
               {"n_inner", c.intermediate_size},
               {"n_layer", c.num_hidden_layers},
               {"n_head", c.num_attention_heads},
               {"vocab_size", c.vocab_size},
               {"n_positions", c.max_position_embeddings},
               {"layer_norm_epsilon", c.layer_norm_epsilon},
               {"initializer_range", c.initializer_range},
               {"tie_word_embeddings", c.tie_word_embeddings}});
  write_dropout(c.dropout, dropout_names, default_dropout, json);
}

constexpr KeyList gpt2_keys{"hidden_size",
                            "intermediate_size",
                            "num_hidden_layers",
                            "num_attention_heads",
                            "num_key_value_heads",
                            "head_dim",
                            "vocab_size",
                            "max_position_embeddings",
                            "layer_norm_epsilon",
                            "tie_word_embeddings",
                            "dropout",
                            "initializer_range"};

void check_gpt2_config(const ModelConfig& c) {
  validate(
      c.num_key_value_heads == c.num_attention_heads,
      "model.num_key_value_heads is {}, but the family gpt2 has as many as attention heads, {}",
      c.num_key_value_heads, c.num_attention_heads);
  validate(c.head_dim * c.num_attention_heads == c.hidden_size,
           "model.head_dim is {}, but the family gpt2 has hidden_size {} / num_attention_heads {}",
           c.head_dim, c.hidden_size, c.num_attention_heads);
  validate(c.max_position_embeddings > 0,
           "model.max_position_embeddings is {}; the family gpt2 learns that many positions",
           c.max_position_embeddings);
  validate(c.layer_norm_epsilon > 0, "model.layer_norm_epsilon is {}; it must be positive",
           c.layer_norm_epsilon);
}

void add_gpt2_layer(TableBuilder& add, ModuleId layer, const ModelConfig& c) {
  const Blocks heads{"num_attention_heads", c.num_attention_heads};
  const Blocks features{"intermediate_size", c.intermediate_size};
  const auto D = c.hidden_size, F = c.intermediate_size;
  const auto attn = add.child(layer, gpt2_names.attention);
  std::vector<WeightModule> linears;
  for (const auto name : {gpt2_names.q_proj, gpt2_names.k_proj, gpt2_names.v_proj})
    linears.push_back(add.linear(attn, name, {D, D}, Role::column, heads));
  linears.push_back(
      add.linear(attn, gpt2_names.o_proj, {D, D}, Role::row, heads, Initial::normal_by_depth));
  for (const auto& linear : linears) add.bias(linear);
  const auto mlp = add.child(layer, gpt2_names.mlp);
  const auto up = add.linear(mlp, gpt2_names.up_proj, {F, D}, Role::column, features);
  const auto down =
      add.linear(mlp, gpt2_names.down_proj, {D, F}, Role::row, features, Initial::normal_by_depth);
  for (const auto& linear : {up, down}) add.bias(linear);
  for (const auto name : {gpt2_names.norm_before_attention, gpt2_names.norm_before_mlp})
    add.layer_norm(layer, name, D);
}

ParameterTable make_gpt2_table(const ModelConfig& c) {
  const Blocks vocabulary{"vocab_size", c.vocab_size};
  const Shape vocabulary_shape{c.vocab_size, c.hidden_size};
  TableBuilder add;
  const auto model = add.child(add.root(), "transformer");
  const auto wte = add.linear(model, "wte", vocabulary_shape, Role::vocab, vocabulary);
  add.positions(model, "wpe", {c.max_position_embeddings, c.hidden_size});
  const auto layers = add.child(model, "h");
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i)
    add_gpt2_layer(add, add.layer(layers, i), c);
  const auto norm = add.layer_norm(model, "ln_f", c.hidden_size);
  const auto lm_head = c.tie_word_embeddings ? add.tied(add.root(), "lm_head", wte)
                                             : add.linear(add.root(), "lm_head", vocabulary_shape,
                                                          Role::vocab, vocabulary);
  return add.table(wte, norm, lm_head);
}

ModelTraits gpt2_traits(const ModelConfig& c) {
  const LayerTraits layer{.names = gpt2_names, .activation = ops::Activation::gelu};
  return {.layers = std::vector(static_cast<std::size_t>(c.num_hidden_layers), layer)};
}

/// GPT-2's layers store (in, out), transformers' Conv1D, and c_attn fuses q, k and v.
StateDict gpt2_state_dict(const ModelConfig& /*config*/, const ParameterTable& table) {
  StateDictBuilder dict(table);
  for (std::size_t i = 0; i < table.parameters.size(); ++i) {
    const auto id = static_cast<ParameterId>(i);
    const auto& p = table[id];
    const auto& module = table[p.module];
    const std::string_view name = std::string_view(module.name).substr(module.name.rfind('.') + 1);
    const bool is_matrix = p.shape.size() > 1;
    const bool in_layer = p.role == Role::column || p.role == Role::row;
    if (name == gpt2_names.q_proj || name == gpt2_names.k_proj || name == gpt2_names.v_proj)
      dict.fused(table[module.parent].name + ".c_attn" + p.name.substr(p.name.rfind('.')), id,
                 is_matrix);
    else if (in_layer && is_matrix)
      dict.transposed(id);
    else
      dict.plain(id);
  }
  return dict.take();
}

}  // namespace

const Family gpt2_family{.name = "gpt2",
                         .architecture = "GPT2LMHeadModel",
                         .base_prefix = "transformer.",
                         .read_config = read_gpt2_config,
                         .write_config = write_gpt2_config,
                         .keys = gpt2_keys,
                         .check = check_gpt2_config,
                         .make_table = make_gpt2_table,
                         .traits = gpt2_traits,
                         .state_dict = gpt2_state_dict};

}  // namespace llamesh::model
