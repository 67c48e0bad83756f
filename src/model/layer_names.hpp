#pragma once

#include <string_view>

namespace llamesh::model {

/// A family's names for the modules of its layers. An empty name stands for a module that it does
/// not have.
struct LayerNames {
  std::string_view attention = "self_attn";
  std::string_view q_proj = "q_proj", k_proj = "k_proj", v_proj = "v_proj", o_proj = "o_proj";
  std::string_view mlp = "mlp";
  std::string_view gate_proj = "gate_proj";  ///< without it, the activation is gelu_new
  std::string_view up_proj = "up_proj", down_proj = "down_proj";
  /// With a router, the MLP is one of experts, whose stacked matrices have the names above.
  std::string_view router = {}, experts = {};
  std::string_view norm_before_attention = "input_layernorm";
  std::string_view norm_after_attention = {};
  std::string_view norm_before_mlp = "post_attention_layernorm";
  std::string_view norm_after_mlp = {};
};

}  // namespace llamesh::model
