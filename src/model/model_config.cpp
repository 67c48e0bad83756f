#include "model/model_config.hpp"

#include <limits>
#include <string>

#include "core/error.hpp"
#include "model/family.hpp"

namespace llamesh::model {
namespace {

// Far above any model, yet small enough that products with layers and bytes per element cannot
// overflow.
constexpr std::int64_t widest = std::int64_t{1} << 20U;
constexpr std::int64_t max_layers = 10'000;

}  // namespace

ModelConfig ModelConfig::resolved() const {
  ModelConfig c = *this;
  family_named(family);
  const auto in_range = [](const char* key, std::int64_t value, std::int64_t max) {
    validate(value >= 1 && value <= max, "model.{} is {}; allowed: 1 to {}", key, value, max);
  };
  in_range("hidden_size", hidden_size, widest);
  in_range("intermediate_size", intermediate_size, widest);
  in_range("num_hidden_layers", num_hidden_layers, max_layers);
  in_range("num_attention_heads", num_attention_heads, widest);
  in_range("vocab_size", vocab_size, std::numeric_limits<std::int32_t>::max());
  if (c.num_key_value_heads == 0) c.num_key_value_heads = num_attention_heads;
  in_range("num_key_value_heads", c.num_key_value_heads, widest);
  validate(num_attention_heads % c.num_key_value_heads == 0,
           "model.num_attention_heads {} is not a multiple of num_key_value_heads {}",
           num_attention_heads, c.num_key_value_heads);
  if (c.head_dim == 0) {
    validate(hidden_size % num_attention_heads == 0,
             "model.hidden_size {} is not a multiple of num_attention_heads {}; set head_dim",
             hidden_size, num_attention_heads);
    c.head_dim = hidden_size / num_attention_heads;
  }
  in_range("head_dim", c.head_dim, widest / num_attention_heads);
  validate(c.head_dim % 2 == 0, "model.head_dim is {}; rotary embedding needs an even number",
           c.head_dim);
  validate(rms_norm_eps > 0, "model.rms_norm_eps is {}; it must be positive", rms_norm_eps);
  validate(rope_theta > 1, "model.rope_theta is {}; it must be above 1", rope_theta);
  if (rope_scaling)
    validate(rope_scaling->high_freq_factor > rope_scaling->low_freq_factor,
             "model.rope_scaling: high_freq_factor {} is not above low_freq_factor {}",
             rope_scaling->high_freq_factor, rope_scaling->low_freq_factor);
  validate(initializer_range > 0, "model.initializer_range is {}; it must be positive",
           initializer_range);
  return c;
}

}  // namespace llamesh::model
