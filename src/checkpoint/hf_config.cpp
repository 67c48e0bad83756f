#include "checkpoint/hf_config.hpp"

#include <nlohmann/json.hpp>

namespace llamesh::checkpoint {

std::string to_config_json(const model::LlamaConfig& c) {
  nlohmann::ordered_json j = {{"architectures", {"LlamaForCausalLM"}},
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
                              {"mlp_bias", false}};
  if (c.rope_scaling)
    j["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", c.rope_scaling->factor},
        {"low_freq_factor", c.rope_scaling->low_freq_factor},
        {"high_freq_factor", c.rope_scaling->high_freq_factor},
        {"original_max_position_embeddings", c.rope_scaling->original_max_position_embeddings}};
  return j.dump(2);
}

}  // namespace llamesh::checkpoint
