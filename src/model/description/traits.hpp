#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "model/description/model_config.hpp"
#include "ops/calls.hpp"

/// What a family's model computes beyond what its table of parameters says. The layers know no
/// family: they follow these records, which Family::traits gives.
namespace llamesh::model {

/// A family's names for the modules of its layers. An empty name stands for a module that it does
/// not have.
struct LayerNames {
  std::string_view attention = "self_attn";
  std::string_view q_proj = "q_proj", k_proj = "k_proj", v_proj = "v_proj", o_proj = "o_proj";
  std::string_view q_norm = "q_norm", k_norm = "k_norm";
  std::string_view sinks = {};  ///< attention's parameter with a sink for each head
  /// Latent attention: to the latents, their norms, and from them to the heads. Queries may have
  /// none, and q_proj.
  std::string_view q_a_proj = "q_a_proj", kv_a_proj = "kv_a_proj_with_mqa";
  std::string_view q_a_norm = "q_a_layernorm", kv_a_norm = "kv_a_layernorm";
  std::string_view q_b_proj = "q_b_proj", kv_b_proj = "kv_b_proj";
  std::string_view mlp = "mlp";
  std::string_view act_fn = "act_fn";  ///< an activation with coefficients
  std::string_view gate_proj = "gate_proj", up_proj = "up_proj", down_proj = "down_proj";
  /// With a router, the MLP is one of experts, whose stacked matrices have the names above.
  std::string_view router = {}, experts = {};
  /// The parameter that sigmoid routers add to their scores to choose by, in `mlp` or, with a dot,
  /// in the router. Without it, scores are a softmax.
  std::string_view selection_bias = {};
  /// An MLP that all tokens take beside these, and its gate's linear layer.
  std::string_view shared_expert = {}, shared_expert_gate = {};
  std::string_view norm_before_attention = "input_layernorm";
  std::string_view norm_after_attention = {};
  std::string_view norm_before_mlp = "post_attention_layernorm";
  std::string_view norm_after_mlp = {};
};

/// Rotary position embedding: of the pairs (i, i + E/2) of a head's dims, the first r/2 rotate. A
/// family whose folders pair dims in another way stores the heads' rows in another order
/// (StateDictBuilder::rotary()).
struct Rope {
  double theta;                             ///< base of the frequencies
  std::int64_t dims = 0;                    ///< r: dims of a head that rotate; 0: all E
  std::optional<RopeScaling> scaling = {};  ///< of the frequencies
  bool operator==(const Rope&) const = default;
};

struct LayerTraits {
  LayerNames names = {};
  ops::Activation activation = ops::Activation::swiglu;
  std::int64_t window = 0;           ///< keys that a query sees at most, itself included; 0: all
  std::optional<Rope> rope = {};     ///< without it, queries and keys are not rotated
  bool rotates_before_norm = false;  ///< whether q_norm and k_norm follow the rotation
  float score_divisor = 0;           ///< of attention's scores; 0: the square root of head_dim
  float softcap = 0;                 ///< of attention's scores; 0: none
  bool parallel = false;             ///< y = x + attention(n(x)) + MLP(n(x)), with one norm n
};

struct ModelTraits {
  std::vector<LayerTraits> layers;
  float embedding_scale = 1;  ///< factor on the embeddings of tokens, rounded to their dtype
  float residual_scale = 1;   ///< factor on what a branch adds to the residual stream
  float logit_scale = 1;      ///< factor on the logits
  float logit_softcap = 0;    ///< of the logits; 0: none
  float norm_offset = 0;      ///< added to the weights of RMSNorms
};

/// Returns the traits of a resolved config's family. Pure.
ModelTraits traits_of(const ModelConfig& config);

}  // namespace llamesh::model
