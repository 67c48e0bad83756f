#include "model/families/llama_like.hpp"

// Llama, and the families that differ from it by switches.

namespace llamesh::model {
namespace {

constexpr LlamaVariant llama{.has_attention_bias = true, .has_mlp_bias = true};

constexpr LlamaVariant mistral{.windowed_layers = WindowedLayers::all,
                               .needs_num_key_value_heads = true,
                               .sliding_window = 4096};

constexpr LlamaVariant qwen2{.qkv_bias = true,
                             .windowed_layers = WindowedLayers::from_index,
                             .needs_num_key_value_heads = true,
                             .sliding_window = 4096};

constexpr LlamaVariant qwen3{.has_attention_bias = true,
                             .qk_norm = QkNorm::per_head,
                             .windowed_layers = WindowedLayers::from_index,
                             .needs_num_key_value_heads = true,
                             .needs_head_dim = true,
                             .sliding_window = 4096};

constexpr LlamaVariant olmo2{.has_attention_bias = true,
                             .qk_norm = QkNorm::projection,
                             .names = {.norm_before_attention = "",
                                       .norm_after_attention = "post_attention_layernorm",
                                       .norm_before_mlp = "",
                                       .norm_after_mlp = "post_feedforward_layernorm"},
                             .rms_norm_eps = 1e-5};

constexpr LlamaVariant mixtral{
    .windowed_layers = WindowedLayers::all,
    .experts = ExpertKeys{.count = "num_local_experts", .second_count = "num_experts"},
    .names = {.mlp = "block_sparse_moe",
              .gate_proj = "w1",
              .up_proj = "w3",
              .down_proj = "w2",
              .router = "gate",
              .experts = "experts"},
    .rms_norm_eps = 1e-5,
    .needs_num_key_value_heads = true,
    .rope_theta = 1e6};

constexpr LlamaVariant qwen3_moe{.has_attention_bias = true,
                                 .qk_norm = QkNorm::per_head,
                                 .experts = ExpertKeys{.count = "num_experts",
                                                       .second_count = "num_local_experts",
                                                       .own_size = true,
                                                       .has_norm_topk_prob = true},
                                 .names = {.router = "gate", .experts = "experts"},
                                 .needs_num_key_value_heads = true};

}  // namespace

const Family llama_family = llama_like<llama>("llama", "LlamaForCausalLM");
const Family mistral_family = llama_like<mistral>("mistral", "MistralForCausalLM");
const Family qwen2_family = llama_like<qwen2>("qwen2", "Qwen2ForCausalLM");
const Family qwen3_family = llama_like<qwen3>("qwen3", "Qwen3ForCausalLM");
const Family olmo2_family = llama_like<olmo2>("olmo2", "Olmo2ForCausalLM");
const Family mixtral_family = llama_like<mixtral>("mixtral", "MixtralForCausalLM");
const Family qwen3_moe_family = llama_like<qwen3_moe>("qwen3_moe", "Qwen3MoeForCausalLM");

}  // namespace llamesh::model
