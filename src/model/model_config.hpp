#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llamesh::model {

/// Scaling of RoPE's frequencies for longer texts, by rope_type in config.json.
enum class RopeType : std::uint8_t {
  linear,  ///< all by `factor` (Chen et al. 2023)
  llama3,  ///< long wavelengths by `factor`, as in Llama 3.1
  yarn,    ///< by wavelength, with hotter attention (Peng et al. 2023)
};

/// Parameters for frequency scaling, named as in config.json's rope_scaling.
struct RopeScaling {
  RopeType rope_type = RopeType::llama3;
  double factor = 0;              ///< 0: 8 for llama3; the others have no default
  double low_freq_factor = 1.0;   ///< llama3
  double high_freq_factor = 4.0;  ///< llama3
  std::int64_t original_max_position_embeddings = 0;  ///< llama3 (0: 8192), yarn
  double attention_factor = 0;  ///< yarn: scales queries and keys; 0: 0.1 ln(factor) + 1
  double beta_fast = 32;        ///< yarn: rotations over the original context that stay unscaled
  double beta_slow = 1;         ///< yarn: rotations below which `factor` applies in full
  bool truncate = true;         ///< yarn: rounds the bounds between the two to whole dims
  bool operator==(const RopeScaling&) const = default;
};

/// Initial values of an adapter's A; its B starts at zero.
enum class LoraInit : std::uint8_t {
  kaiming_uniform,  ///< uniform in +-1 / sqrt(in): PEFT's default
  gaussian,         ///< normal with standard deviation 1 / rank
};

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
  double scaling() const;
};

/// Model dimensions, named as in Hugging Face's config.json. A family refuses what it does not
/// have.
struct ModelConfig {
  std::string family = "llama";  ///< Family::name
  std::int64_t hidden_size = 256;
  std::int64_t intermediate_size = 688;
  std::int64_t num_hidden_layers = 4;
  std::int64_t num_attention_heads = 8;
  std::int64_t num_key_value_heads = 0;  ///< 0: as num_attention_heads
  std::int64_t head_dim = 0;             ///< 0: hidden_size / num_attention_heads
  std::int64_t vocab_size = 256;
  std::int64_t max_position_embeddings = 0;  ///< learned positions; 0: the family has none
  double rms_norm_eps = 1e-5;
  double layer_norm_epsilon = 1e-5;
  double rope_theta = 10000.0;
  std::optional<RopeScaling> rope_scaling;
  std::int64_t num_experts = 0;               ///< in each MLP; 0: the family has none
  std::int64_t num_experts_per_tok = 0;       ///< a token takes so many of them
  std::int64_t moe_intermediate_size = 0;     ///< an expert's; 0: intermediate_size
  std::int64_t decoder_sparse_step = 1;       ///< each so many-th layer has experts,
  std::vector<std::int64_t> mlp_only_layers;  ///< but for these, numbered from 0
  bool norm_topk_prob = true;           ///< whether a token's weights of its experts add up to 1
  bool output_router_logits = false;    ///< whether the load-balancing loss is added
  double router_aux_loss_coef = 0.001;  ///< its coefficient
  double router_z_loss_coef = 0;        ///< of the z-loss; not in config.json
  std::int64_t sliding_window = 0;      ///< keys that a query sees at most, itself included; 0: all
  std::int64_t max_window_layers = 0;   ///< first layer with a sliding window
  bool tie_word_embeddings = false;
  bool attention_bias = false;  ///< on q, k, v and o
  bool mlp_bias = false;        ///< on gate, up and down
  double dropout = 0;           ///< as a folder says; training refuses any other than 0
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
    return num_experts > 0 && (static_cast<std::int64_t>(layer) + 1) % decoder_sparse_step == 0 &&
           std::ranges::find(mlp_only_layers, static_cast<std::int64_t>(layer)) ==
               mlp_only_layers.end();
  }
  /// Returns the width of an expert.
  std::int64_t expert_size() const {
    return moe_intermediate_size > 0 ? moe_intermediate_size : intermediate_size;
  }
  /// Returns `sequence`, or the number of learned positions if that is smaller.
  std::int64_t within_positions(std::int64_t sequence) const {
    return max_position_embeddings == 0 ? sequence : std::min(sequence, max_position_embeddings);
  }
  /// Returns a layer's sliding window; 0: none.
  std::int64_t window(std::size_t layer) const {
    return std::cmp_less(layer, max_window_layers) ? 0 : sliding_window;
  }
};

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
