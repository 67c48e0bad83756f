#include "model/llama_config.hpp"

#include "core/error.hpp"

namespace llamesh::model {

LlamaConfig LlamaConfig::resolved() const {
  LlamaConfig c = *this;
  const auto positive = [](const char* key, std::int64_t value) {
    validate(value > 0, "model.{} is {}; it must be at least 1", key, value);
  };
  positive("hidden_size", hidden_size);
  positive("intermediate_size", intermediate_size);
  positive("num_hidden_layers", num_hidden_layers);
  positive("num_attention_heads", num_attention_heads);
  positive("vocab_size", vocab_size);
  if (c.num_key_value_heads == 0) c.num_key_value_heads = num_attention_heads;
  positive("num_key_value_heads", c.num_key_value_heads);
  validate(num_attention_heads % c.num_key_value_heads == 0,
           "model.num_attention_heads {} is not a multiple of num_key_value_heads {}",
           num_attention_heads, c.num_key_value_heads);
  if (c.head_dim == 0) {
    validate(hidden_size % num_attention_heads == 0,
             "model.hidden_size {} is not a multiple of num_attention_heads {}; set head_dim",
             hidden_size, num_attention_heads);
    c.head_dim = hidden_size / num_attention_heads;
  }
  validate(c.head_dim > 0 && c.head_dim % 2 == 0,
           "model.head_dim is {}; rotary embedding needs an even number", c.head_dim);
  validate(rms_norm_eps > 0, "model.rms_norm_eps is {}; it must be positive", rms_norm_eps);
  validate(rope_theta > 1, "model.rope_theta is {}; it must be above 1", rope_theta);
  validate(initializer_range > 0, "model.initializer_range is {}; it must be positive",
           initializer_range);
  return c;
}

}  // namespace llamesh::model
