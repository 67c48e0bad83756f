#include "model/families/llama_like.hpp"

// Llama, and the families that differ from it by switches.

namespace llamesh::model {
namespace {

constexpr LlamaVariant llama{.has_attention_bias = true, .has_mlp_bias = true};

constexpr LlamaVariant mistral{.windowed_layers = WindowedLayers::all, .num_key_value_heads = 8};

constexpr LlamaVariant qwen2{
    .qkv_bias = true, .windowed_layers = WindowedLayers::from_index, .num_key_value_heads = 32};

constexpr LlamaVariant qwen3{.has_attention_bias = true,
                             .qk_norm = QkNorm::per_head,
                             .windowed_layers = WindowedLayers::from_index,
                             .num_key_value_heads = 32,
                             .head_dim = 128};

constexpr LlamaVariant olmo2{.has_attention_bias = true,
                             .qk_norm = QkNorm::projection,
                             .names = {.norm_before_attention = "",
                                       .norm_after_attention = "post_attention_layernorm",
                                       .norm_before_mlp = "",
                                       .norm_after_mlp = "post_feedforward_layernorm"},
                             .rms_norm_eps = 1e-5};

}  // namespace

const Family llama_family = llama_like<llama>("llama", "LlamaForCausalLM");
const Family mistral_family = llama_like<mistral>("mistral", "MistralForCausalLM");
const Family qwen2_family = llama_like<qwen2>("qwen2", "Qwen2ForCausalLM");
const Family qwen3_family = llama_like<qwen3>("qwen3", "Qwen3ForCausalLM");
const Family olmo2_family = llama_like<olmo2>("olmo2", "Olmo2ForCausalLM");

}  // namespace llamesh::model
