#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/enum_names.hpp"
#include "core/range.hpp"

namespace llamesh::model {

/// Scaling of RoPE's frequencies for longer texts, by rope_type in config.json.
enum class RopeType : std::uint8_t {
  linear,  ///< all by `factor` (Chen et al. 2023)
  llama3,  ///< long wavelengths by `factor`, as in Llama 3.1
  yarn,    ///< by wavelength, with hotter attention (Peng et al. 2023)
  /// By a factor for each frequency, from one list for short texts and one for long ones, with
  /// hotter attention (Ding et al. 2024).
  longrope,
  dynamic,  ///< by the length of texts beyond the original context, through the base
};
inline EnumNames<RopeType> enum_names(RopeType) {
  using enum RopeType;
  return {{{"dynamic", dynamic},
           {"llama3", llama3},
           {"linear", linear},
           {"longrope", longrope},
           {"yarn", yarn}}};
}

/// Parameters for frequency scaling, named as in config.json's rope_scaling.
struct RopeScaling {
  RopeType rope_type = RopeType::llama3;
  double factor = 0;              ///< 0: 8 for llama3; the others have no default
  double low_freq_factor = 1.0;   ///< llama3
  double high_freq_factor = 4.0;  ///< llama3
  /// llama3 (0: 8192), yarn, longrope, dynamic: L
  std::int64_t original_max_position_embeddings = 0;
  double attention_factor = 0;  ///< yarn, longrope: scales queries and keys; 0: 0.1 ln(factor) + 1
                                ///< or sqrt(1 + ln(factor) / ln(L)), 1 without a factor above 1
  double beta_fast = 32;        ///< yarn: rotations over the original context that stay unscaled
  double beta_slow = 1;         ///< yarn: rotations below which `factor` applies in full
  bool truncate = true;         ///< yarn: rounds the bounds between the two to whole dims
  double mscale_all_dim = 0;    ///< yarn, with latent attention: scores are scaled by
                                ///< (0.1 mscale_all_dim ln(factor) + 1)^2
  double llama_4_scaling_beta = 0;  ///< yarn: scales the query in position p by 1 + beta ln(1 +
                                    ///< floor(p / L)), in families that do
  std::vector<double> short_factor = {};  ///< longrope: divides each frequency in texts up to L,
  std::vector<double> long_factor = {};   ///< and in longer ones
  bool operator==(const RopeScaling&) const = default;
};

/// Initial values of an adapter's A; its B starts at zero.
enum class LoraInit : std::uint8_t {
  kaiming_uniform,  ///< uniform in +-1 / sqrt(in): PEFT's default
  gaussian,         ///< normal with standard deviation 1 / rank
};
inline EnumNames<LoraInit> enum_names(LoraInit) {
  using enum LoraInit;
  return {{{"kaiming_uniform", kaiming_uniform}, {"gaussian", gaussian}}};
}

/// Form in which the weights beside adapters are kept.
enum class BaseDType : std::uint8_t {
  automatic,  ///< precision.parameters
  int8,       ///< matrices in decoder layers as codes (ops::CodeFormat::int8_by_64)
  nf4,        ///< likewise (QLoRA, Dettmers et al. 2023)
};
inline EnumNames<BaseDType> enum_names(BaseDType) {
  using enum BaseDType;
  return {{{"auto", automatic}, {"int8", int8}, {"nf4", nf4}}};
}

/// Low-rank adapters beside linear layers (Hu et al. 2021): y = x W^T + scaling() (x A^T) B^T.
/// Everything else is frozen.
struct Lora {
  std::int64_t rank = 8;
  double alpha = 8;
  /// Names of modules, whole or their last parts, as PEFT's target_modules, with wildcards as in
  /// fnmatch(3); `all-linear`: all.
  std::vector<std::string> targets = {"all-linear"};
  bool rslora = false;  ///< scales by 1 / sqrt(rank) in place of 1 / rank (Kalajdzievski 2023)
  LoraInit init = LoraInit::kaiming_uniform;
  double dropout = 0;  ///< any other is refused
  BaseDType base = BaseDType::automatic;
  double scaling() const;
};

/// Words in layer_types.
inline constexpr std::string_view sliding_attention = "sliding_attention";
inline constexpr std::string_view full_attention = "full_attention";

/// Model dimensions, named as in Hugging Face's config.json. A new member needs a row in model_keys
/// and a place in the lists of the families that take it (Family::keys).
struct ModelConfig {
  std::string family = "llama";  ///< Family::name
  std::int64_t hidden_size = 256;
  std::int64_t intermediate_size = 688;
  std::int64_t num_hidden_layers = 4;
  std::int64_t num_attention_heads = 8;
  std::int64_t num_key_value_heads = 0;  ///< 0: as num_attention_heads
  std::int64_t head_dim = 0;             ///< 0: hidden_size / num_attention_heads
  std::int64_t q_lora_rank = 0;          ///< latent attention: the queries' latent dims; 0: none
  std::int64_t kv_lora_rank = 0;         ///< and the keys' and values'; 0: no latent attention
  std::int64_t qk_nope_head_dim = 0;     ///< query and key dims without RoPE
  std::int64_t qk_rope_head_dim = 0;     ///< and with RoPE; both add up to head_dim
  std::int64_t v_head_dim = 0;           ///< value dims
  std::int64_t vocab_size = 256;
  std::int64_t max_position_embeddings = 0;  ///< learned positions; 0: the family has none
  double rms_norm_eps = 1e-5;
  double layer_norm_epsilon = 1e-5;
  double rope_theta = 10000.0;
  std::optional<RopeScaling> rope_scaling;
  double rope_local_base_freq = 1e4;  ///< rope_theta of layers with a window, never scaled
  double partial_rotary_factor = 1;   ///< the part of a head's dims that rotate, the first ones
  std::int64_t query_pre_attn_scalar = 0;  ///< scores are divided by its square root; 0: head_dim
  double attention_multiplier = 0;         ///< on attention's scores; 0: 1 / sqrt(head_dim)
  double embedding_multiplier = 1;         ///< on the embeddings of tokens
  double residual_multiplier = 1;          ///< on what attention and MLP add to the residual stream
  double logits_scaling = 1;               ///< divides the logits
  double attn_logit_softcapping = 0;     ///< c: attention's scores become c tanh(score / c); 0: not
  double final_logit_softcapping = 0;    ///< likewise the logits
  std::int64_t num_experts = 0;          ///< in each MLP; 0: the family has none
  std::int64_t num_experts_per_tok = 0;  ///< a token takes so many of them
  std::int64_t moe_intermediate_size = 0;            ///< an expert's; 0: intermediate_size
  std::int64_t shared_expert_intermediate_size = 0;  ///< an expert that all tokens take; 0: none
  std::int64_t decoder_sparse_step = 1;              ///< each so many-th layer has experts,
  std::vector<std::int64_t> mlp_only_layers;         ///< but for these, numbered from 0
  std::int64_t first_k_dense_replace = 0;            ///< nor do the first layers, so many
  std::int64_t n_group = 1;                          ///< equal groups of experts,
  std::int64_t topk_group = 1;                       ///< of which a token's experts are in so many
  double routed_scaling_factor = 1;                  ///< on a token's weights for its experts
  double router_bias_update_rate = 0;                ///< moves sigmoid routers' biases; ours
  bool norm_topk_prob = true;           ///< whether a token's weights of its experts add up to 1
  bool output_router_logits = false;    ///< whether the load-balancing loss is added
  double router_aux_loss_coef = 0.001;  ///< its coefficient
  double router_z_loss_coef = 0;        ///< of the z-loss; not in config.json
  std::int64_t sliding_window = 0;      ///< keys that a query sees at most, itself included; 0: all
  std::int64_t max_window_layers = 0;   ///< first layer with a sliding window
  /// Each layer's type, sliding_attention or full_attention; a shorter list repeats. Empty: by
  /// max_window_layers, or all alike.
  std::vector<std::string> layer_types;
  /// Whether each layer rotates queries and keys, 1 or 0; a shorter list repeats. Empty: all do.
  std::vector<std::int64_t> no_rope_layers;
  bool tie_word_embeddings = false;
  bool use_qk_norm = false;         ///< whether queries and keys have a norm, where a key says so
  bool attention_bias = false;      ///< on q, k and v, and on o without the next key
  bool attention_out_bias = false;  ///< the one on o
  bool mlp_bias = false;            ///< on gate, up and down
  double dropout = 0;               ///< as a folder says; training refuses any other than 0
  double initializer_range = 0.02;
  std::optional<Lora> lora;  ///< adapters; none in config.json

  /// Returns the config with the zeros above resolved. Throws a user error that names the key if
  /// the numbers do not fit together.
  ModelConfig resolved() const;
  /// Returns the config without adapters: that of the model beside which they lie.
  ModelConfig base() const {
    ModelConfig config = *this;
    config.lora.reset();
    return config;
  }
  /// Returns true if the layer has experts instead of an MLP.
  bool has_experts(std::size_t layer) const {
    const auto i = static_cast<std::int64_t>(layer);
    return num_experts > 0 && i >= first_k_dense_replace && (i + 1) % decoder_sparse_step == 0 &&
           std::ranges::find(mlp_only_layers, i) == mlp_only_layers.end();
  }
  /// Returns true if keys and values follow from a latent (DeepSeek-AI 2024).
  bool has_latent_attention() const { return kv_lora_rank > 0; }
  /// Returns true if weights beside adapters are kept as codes.
  bool has_coded_base() const { return lora && lora->base != BaseDType::automatic; }
  /// Returns a value's dims, in a resolved config.
  std::int64_t value_dim() const { return has_latent_attention() ? v_head_dim : head_dim; }
  /// Returns the width of an expert.
  std::int64_t expert_size() const {
    return moe_intermediate_size > 0 ? moe_intermediate_size : intermediate_size;
  }
  /// Returns `sequence`, or the number of learned positions if that is smaller.
  std::int64_t within_positions(std::int64_t sequence) const {
    return max_position_embeddings == 0 ? sequence : std::min(sequence, max_position_embeddings);
  }
  /// Returns the dims of a head that rotate, in a resolved config.
  std::int64_t rotary_dims() const {
    if (has_latent_attention()) return qk_rope_head_dim;
    return static_cast<std::int64_t>(static_cast<double>(head_dim) * partial_rotary_factor);
  }
  /// Returns true unless no_rope_layers leaves the layer out.
  bool rotates(std::size_t layer) const {
    return no_rope_layers.empty() || no_rope_layers[layer % no_rope_layers.size()] != 0;
  }
  /// Returns a layer's sliding window; 0: none.
  std::int64_t window(std::size_t layer) const {
    const bool slides = layer_types.empty()
                            ? std::cmp_greater_equal(layer, max_window_layers)
                            : layer_types[layer % layer_types.size()] == sliding_attention;
    return slides ? sliding_window : 0;
  }
};

/// What a key's new value does to weights that were trained with another one.
enum class Change : std::uint8_t {
  allowed,   ///< users change it on purpose as they train on
  meaning,   ///< the same weights mean something else
  reshapes,  ///< there are other parameters, or of other shapes
};

/// How config.json has a key.
enum class InJson : std::uint8_t {
  special,   ///< under another name, or not at all: families read and write it themselves
  needed,    ///< by its name, without a default
  optional,  ///< by its name; if it is absent, the family's default applies
};

/// Whether the first versions of llamesh wrote a key.
enum class Since : std::uint8_t { first, later };

/// A key of ModelConfig.
template <class T>
struct ModelKey {
  const char* name;
  T ModelConfig::*member;
  Range range;  ///< of a number, and of a list's elements
  Change change;
  InJson in_json = InJson::special;
  Since since = Since::first;
  bool automatic = false;  ///< 0, written as `auto`, stands for what follows from other keys
};
template <class T, class... Rest>
ModelKey(const char*, T ModelConfig::*, Rest...) -> ModelKey<T>;

// Far above any model, yet small enough that products with layers and bytes per element cannot
// overflow.
inline constexpr std::int64_t widest = std::int64_t{1} << 20U;
inline constexpr std::int64_t longest = std::int64_t{1} << 24U;
inline constexpr std::int64_t max_layers = 10'000;

/// All keys of ModelConfig but `family` and the adapters', in the order in which they are written.
/// Reading and writing them, in input files and in config.json, checking their ranges, describing
/// differences, and refusing those that a family does not take follow from it.
inline constexpr auto model_keys = [] {
  using C = ModelConfig;
  using enum Change;
  using enum InJson;
  using enum Since;
  constexpr Range size = from_to(1, widest), size_or_0 = from_to(0, widest);
  constexpr Range length_or_0 = from_to(0, longest);
  constexpr Range epsilon = from_to(1e-30, 1);  // the kernels take fp32
  constexpr Range any;
  return std::tuple{
      ModelKey{"hidden_size", &C::hidden_size, size, reshapes, needed},
      ModelKey{"intermediate_size", &C::intermediate_size, size, reshapes, needed},
      ModelKey{"num_hidden_layers", &C::num_hidden_layers, from_to(1, max_layers), reshapes,
               needed},
      ModelKey{"num_attention_heads", &C::num_attention_heads, size, meaning, needed},
      ModelKey{"num_key_value_heads", &C::num_key_value_heads, size_or_0, meaning, special, first,
               /*automatic=*/true},
      ModelKey{"head_dim", &C::head_dim, size_or_0, meaning, special, first, /*automatic=*/true},
      ModelKey{"q_lora_rank", &C::q_lora_rank, size_or_0, reshapes, special, later},
      ModelKey{"kv_lora_rank", &C::kv_lora_rank, size_or_0, reshapes, needed, later},
      ModelKey{"qk_nope_head_dim", &C::qk_nope_head_dim, size_or_0, reshapes, needed, later},
      ModelKey{"qk_rope_head_dim", &C::qk_rope_head_dim, size_or_0, reshapes, needed, later},
      ModelKey{"v_head_dim", &C::v_head_dim, size_or_0, reshapes, needed, later},
      ModelKey{"vocab_size", &C::vocab_size, from_to(1, 2147483647), reshapes, needed},
      ModelKey{"max_position_embeddings", &C::max_position_embeddings, length_or_0, reshapes,
               special, later},
      ModelKey{"rms_norm_eps", &C::rms_norm_eps, epsilon, allowed, optional},
      ModelKey{"layer_norm_epsilon", &C::layer_norm_epsilon, epsilon, allowed, optional, later},
      ModelKey{"rope_theta", &C::rope_theta, above(0), allowed},
      ModelKey{"rope_scaling", &C::rope_scaling, any, allowed},
      ModelKey{"rope_local_base_freq", &C::rope_local_base_freq, above(0), allowed, optional,
               later},
      ModelKey{"query_pre_attn_scalar", &C::query_pre_attn_scalar, size_or_0, meaning, optional,
               later, /*automatic=*/true},
      ModelKey{"partial_rotary_factor", &C::partial_rotary_factor, above_to(0, 1), meaning, special,
               later},
      ModelKey{"attention_multiplier", &C::attention_multiplier, at_least(0), meaning, optional,
               later, /*automatic=*/true},
      ModelKey{"embedding_multiplier", &C::embedding_multiplier, above(0), meaning, optional,
               later},
      ModelKey{"residual_multiplier", &C::residual_multiplier, above(0), meaning, optional, later},
      ModelKey{"logits_scaling", &C::logits_scaling, above(0), meaning, optional, later},
      ModelKey{"attn_logit_softcapping", &C::attn_logit_softcapping, at_least(0), meaning, special,
               later},
      ModelKey{"final_logit_softcapping", &C::final_logit_softcapping, at_least(0), meaning,
               special, later},
      ModelKey{"num_experts", &C::num_experts, length_or_0, reshapes, special, later},
      ModelKey{"num_experts_per_tok", &C::num_experts_per_tok, length_or_0, meaning, needed, later},
      ModelKey{"moe_intermediate_size", &C::moe_intermediate_size, size_or_0, reshapes, needed,
               later},
      ModelKey{"shared_expert_intermediate_size", &C::shared_expert_intermediate_size, size_or_0,
               reshapes, special, later},
      ModelKey{"decoder_sparse_step", &C::decoder_sparse_step, from_to(1, max_layers), reshapes,
               optional, later},
      ModelKey{"mlp_only_layers", &C::mlp_only_layers, at_least(0), reshapes, optional, later},
      ModelKey{"first_k_dense_replace", &C::first_k_dense_replace, from_to(0, max_layers), reshapes,
               special, later},
      ModelKey{"n_group", &C::n_group, from_to(1, 32), meaning, optional, later},
      ModelKey{"topk_group", &C::topk_group, from_to(1, 32), meaning, optional, later},
      ModelKey{"routed_scaling_factor", &C::routed_scaling_factor, above(0), meaning, optional,
               later},
      ModelKey{"router_bias_update_rate", &C::router_bias_update_rate, at_least(0), allowed,
               special, later},
      ModelKey{"norm_topk_prob", &C::norm_topk_prob, any, meaning, optional, later},
      ModelKey{"output_router_logits", &C::output_router_logits, any, allowed, optional, later},
      ModelKey{"router_aux_loss_coef", &C::router_aux_loss_coef, at_least(0), allowed, optional,
               later},
      ModelKey{"router_z_loss_coef", &C::router_z_loss_coef, at_least(0), allowed, special, later},
      ModelKey{"sliding_window", &C::sliding_window, length_or_0, allowed, special, later},
      ModelKey{"max_window_layers", &C::max_window_layers, from_to(0, max_layers), allowed, special,
               later},
      ModelKey{"layer_types", &C::layer_types, any, allowed, special, later},
      ModelKey{"no_rope_layers", &C::no_rope_layers, from_to(0, 1), meaning, special, later},
      ModelKey{"tie_word_embeddings", &C::tie_word_embeddings, any, reshapes, optional},
      ModelKey{"use_qk_norm", &C::use_qk_norm, any, reshapes, optional, later},
      ModelKey{"attention_bias", &C::attention_bias, any, reshapes, optional, later},
      ModelKey{"attention_out_bias", &C::attention_out_bias, any, reshapes, optional, later},
      ModelKey{"mlp_bias", &C::mlp_bias, any, reshapes, optional, later},
      ModelKey{"dropout", &C::dropout, from_to(0, 1), allowed, special, later},
      ModelKey{"initializer_range", &C::initializer_range, above(0), allowed, optional}};
}();

/// Calls visit(key) for each of model_keys.
template <class Visit>
constexpr void for_each_model_key(Visit visit) {
  std::apply([&](const auto&... key) { (visit(key), ...); }, model_keys);
}

/// Returns true if model_keys has the name.
constexpr bool is_model_key(std::string_view name) {
  bool found = false;
  for_each_model_key([&](const auto& key) { found = found || key.name == name; });
  return found;
}

/// Returns true if the models' parameters have the same names and shapes.
bool have_same_parameters(const ModelConfig& a, const ModelConfig& b);

/// Describes the keys by which weights trained in `then` mean something else in `now`, for the
/// user: "model.num_attention_heads is 3 (it was 6), ..."; empty if there are none. Leaves out keys
/// that users change on purpose as they train on: RoPE, sliding windows, the norms' epsilon and the
/// routers' losses. Both configs are resolved.
std::string difference(const ModelConfig& then, const ModelConfig& now);

/// Throws a user error if the model has learned fewer positions than `sequence`. `advice` says what
/// to change.
void check_positions(const ModelConfig& config, std::int64_t sequence,
                     std::string_view advice = "lower data.sequence_length");

}  // namespace llamesh::model
