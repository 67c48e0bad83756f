#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace llamesh::model {

/// Frequency scaling in Llama 3.1 and later ("rope_type": "llama3" in config.json).
struct RopeScaling {
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_max_position_embeddings = 8192;
};

/// Model dimensions, named as in Hugging Face's config.json.
struct ModelConfig {
  std::string family = "llama";  ///< Family::name
  std::int64_t hidden_size = 256;
  std::int64_t intermediate_size = 688;
  std::int64_t num_hidden_layers = 4;
  std::int64_t num_attention_heads = 8;
  std::int64_t num_key_value_heads = 0;  ///< 0: as num_attention_heads
  std::int64_t head_dim = 0;             ///< 0: hidden_size / num_attention_heads
  std::int64_t vocab_size = 256;
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000.0;
  std::optional<RopeScaling> rope_scaling;
  bool tie_word_embeddings = false;
  bool attention_bias = false;  ///< on q, k, v and o
  bool mlp_bias = false;        ///< on gate, up and down
  double initializer_range = 0.02;

  /// Returns the config with the zeros above resolved. Throws a user error that names the key if
  /// the numbers do not fit together.
  ModelConfig resolved() const;
};

}  // namespace llamesh::model
