#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/model_config.hpp"

namespace llamesh::test {

/// A tensor from a golden file, row-major.
struct GoldenTensor {
  std::vector<std::int64_t> shape;
  std::span<const float> values;  ///< borrowed from its Golden
};

/// Reference results (PyTorch and transformers) for one tiny model;
/// tests/model/golden/make_golden.py documents how they were made and the names. Move-only, because
/// its tensors point into it.
class Golden {
 public:
  /// Reads PATH.json and PATH.bin. Throws std::runtime_error if they do not fit together.
  explicit Golden(const std::filesystem::path& path) {
    static_assert(std::endian::native == std::endian::little, "golden files are little-endian");
    std::ifstream text(path.string() + ".json");
    if (!text) throw std::runtime_error("no golden file " + path.string() + ".json");
    json_ = nlohmann::json::parse(text);
    std::ifstream binary(path.string() + ".bin", std::ios::binary);
    values_.resize(std::filesystem::file_size(path.string() + ".bin") / sizeof(float));
    binary.read(reinterpret_cast<char*>(values_.data()),
                static_cast<std::streamsize>(values_.size() * sizeof(float)));
    if (!binary) throw std::runtime_error("cannot read " + path.string() + ".bin");
    for (const auto& [name, entry] : json_.at("tensors").items()) add(name, entry);
  }
  Golden(Golden&&) = default;
  Golden& operator=(Golden&&) = default;

  /// Returns the keys in a Hugging Face config.json.
  const nlohmann::json& config() const { return json_.at("config"); }
  /// Returns lr, betas, eps, weight_decay, clip_norm.
  const nlohmann::json& adamw() const { return json_.at("adamw"); }
  /// (B, T); targets equal to -100 are ignored.
  std::vector<std::vector<std::int32_t>> tokens() const { return json_.at("tokens"); }
  std::vector<std::vector<std::int32_t>> targets() const { return json_.at("targets"); }
  /// (B, T), or no rows if each row is one document.
  std::vector<std::vector<std::int32_t>> document_starts() const {
    return json_.value("document_starts", std::vector<std::vector<std::int32_t>>());
  }
  /// Returns the mean over the valid targets, before any step.
  double loss() const { return json_.at("loss"); }
  /// Return, per optimizer step on this batch, the loss before it and the gradient norm before
  /// clipping.
  std::vector<double> step_losses() const { return json_.at("step_losses"); }
  std::vector<double> step_grad_norms() const { return json_.at("step_grad_norms"); }

  /// Returns e.g. "logits", "weights/model.norm.weight", "gradients/...", "trained/...".
  const GoldenTensor& operator[](const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) throw std::runtime_error("no golden tensor named " + name);
    return found->second;
  }
  const std::map<std::string, GoldenTensor>& tensors() const { return tensors_; }

 private:
  void add(const std::string& name, const nlohmann::json& entry) {
    GoldenTensor tensor{entry.at("shape"), {}};
    std::size_t size = 1;
    for (const std::int64_t length : tensor.shape) size *= static_cast<std::size_t>(length);
    const std::size_t offset = entry.at("offset");
    if (offset + size > values_.size())
      throw std::runtime_error("golden tensor " + name + " reaches past the end of its file");
    tensor.values = std::span(values_).subspan(offset, size);
    tensors_.emplace(name, std::move(tensor));
  }

  nlohmann::json json_;
  std::vector<float> values_;
  std::map<std::string, GoldenTensor> tensors_;
};

/// Loads a model's golden file by its name in make_golden.py: gqa_8_2, tied_6_3, llama3_rope,
/// packed.
inline Golden load_golden(const std::string& model) {
  return Golden(std::filesystem::path(__FILE__).parent_path() / "golden" / model);
}

/// Returns the model config for a golden file.
inline model::ModelConfig config_of(const nlohmann::json& j) {
  model::ModelConfig c;
  c.hidden_size = j.at("hidden_size");
  c.intermediate_size = j.at("intermediate_size");
  c.num_hidden_layers = j.at("num_hidden_layers");
  c.num_attention_heads = j.at("num_attention_heads");
  c.num_key_value_heads = j.at("num_key_value_heads");
  c.head_dim = j.at("head_dim");
  c.vocab_size = j.at("vocab_size");
  c.rms_norm_eps = j.at("rms_norm_eps");
  c.rope_theta = j.at("rope_theta");
  c.tie_word_embeddings = j.at("tie_word_embeddings");
  c.attention_bias = j.value("attention_bias", false);
  c.mlp_bias = j.value("mlp_bias", false);
  if (j.contains("rope_scaling")) {
    const auto& s = j.at("rope_scaling");
    c.rope_scaling =
        model::RopeScaling{s.at("factor"), s.at("low_freq_factor"), s.at("high_freq_factor"),
                           s.at("original_max_position_embeddings")};
  }
  return c.resolved();
}

}  // namespace llamesh::test
