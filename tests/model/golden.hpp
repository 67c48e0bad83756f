#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/description/config_json.hpp"
#include "model/description/family.hpp"
#include "model/description/lora.hpp"
#include "model/description/state_dict.hpp"
#include "source_file.hpp"

namespace llamesh::test {

/// Golden models of families that differ from Llama by switches. Their sizes divide among two
/// tensor ranks, and they have folders in golden/hf.
inline constexpr const char* llama_variants[] = {
    "gemma3",        "olmo3",      "exaone4",    "smollm3",  "ministral",   "seed_oss",
    "phi3",          "hunyuan",    "ernie",      "glm4",     "granite",     "arcee",
    "gemma",         "nemotron",   "starcoder2", "apertus",  "qwen2_moe",   "olmoe",
    "glm4_moe",      "minimax_m2", "glm",        "gemma2",   "cohere",      "cohere2",
    "longrope",      "shortrope",  "ministral3", "granite4", "deepseek_v2", "deepseek_v3",
    "glm4_moe_lite", "gpt_oss",    "internlm3",  "mimo",     "internlm2",   "ling2",
    "helium",        "dots1"};

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
  /// Returns lr and momentum, or null if AdamW updates all parameters.
  nlohmann::json muon() const { return json_.value("muon", nlohmann::json()); }
  bool fp8() const { return json_.value("fp8", false); }
  /// (B, T); targets equal to -100 are ignored.
  std::vector<std::vector<std::int32_t>> tokens() const { return json_.at("tokens"); }
  std::vector<std::vector<std::int32_t>> targets() const { return json_.at("targets"); }
  /// (B, T), or no rows if each row is one document.
  std::vector<std::vector<std::int32_t>> document_starts() const {
    return json_.value("document_starts", std::vector<std::vector<std::int32_t>>());
  }
  /// Returns patterns of the names of frozen parameters.
  std::vector<std::string> freeze() const {
    return json_.value("freeze", std::vector<std::string>());
  }
  /// Returns the mean over the valid targets, before any step.
  double loss() const { return json_.at("loss"); }
  /// Returns the load-balancing loss before any step, as transformers has it; 0 without one.
  double aux_loss() const { return json_.value("aux_loss", 0.0); }
  std::vector<double> step_aux_losses() const {
    return json_.value("step_aux_losses", std::vector<double>());
  }
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

/// Loads a model's golden file by its name in make_golden.py.
inline Golden load_golden(const std::string& model) {
  return Golden(test::source_file("tests/model/golden/") + model);
}

/// Returns the model config for a golden file.
inline model::ModelConfig config_of(nlohmann::json config) {
  if (!config.contains("architectures")) config["architectures"] = {"LlamaForCausalLM"};
  return model::parse_config_json(config.dump(), "golden");
}

/// Returns each parameter's values in a group ("weights/", "gradients/", "trained/"), from the
/// tensors that transformers or PEFT has. Gradients of frozen parameters stay empty.
inline std::vector<std::vector<float>> parameters_of(const Golden& golden, const std::string& group,
                                                     const model::ModelConfig& config,
                                                     const model::ParameterTable& table) {
  std::vector<std::vector<float>> parameters;
  for (const auto& p : table.parameters)
    parameters.emplace_back(static_cast<std::size_t>(p.numel()));
  for (std::size_t p = 0; p < parameters.size(); ++p)
    if (!is_adapter(table.parameters[p]) && table.parameters[p].frozen && group == "gradients/")
      parameters[p].clear();
  auto dict = model::state_dict(config, table);
  std::ranges::move(model::adapter_state_dict(config, table), std::back_inserter(dict));
  for (const auto& stored : dict) {
    if (parameters[model::index(stored.parts.front().parameter)].empty()) continue;
    const auto& tensor = golden[group + stored.name];
    if (tensor.shape != stored.shape) throw std::runtime_error("the shape of " + stored.name);
    for (const auto& part : stored.parts) {
      auto& to = parameters[model::index(part.parameter)];
      const auto whole = Box::whole(table[part.parameter].shape);
      model::for_each_stored(
          part, stored.shape, {whole, 0, whole.numel()},
          [&](const model::StoredRun& run, std::int64_t at, std::int64_t stride) {
            for (std::int64_t i = 0; i < run.count; ++i)
              to[static_cast<std::size_t>(at + i * stride)] =
                  tensor.values[static_cast<std::size_t>(run.begin + i * run.step)];
          });
    }
  }
  return parameters;
}

}  // namespace llamesh::test
