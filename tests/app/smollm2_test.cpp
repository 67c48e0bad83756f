// Compares real weights against transformers. Opt-in: LLAMESH_SMOLLM2 names the folder made by
// smollm2/make_folder.py.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "app/models/loaded_model.hpp"
#include "model/decoder.hpp"
#include "model/sampling.hpp"
#include "source_file.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::app {
namespace {

using Ids = std::vector<std::int32_t>;

/// SmolLM2 in fp32, and transformers' float64 results.
class SmolLM2 : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("LLAMESH_SMOLLM2");
    if (folder == nullptr) GTEST_SKIP() << "LLAMESH_SMOLLM2 names no folder of its weights";
    model_ = std::make_unique<LoadedModel>(folder, DType::f32);
    tokenizer_ = tokenizer::open_tokenizer(model_->data.tokenizer);
    std::ifstream in(test::source_file("tests/app/smollm2/golden.json"));
    golden_ = nlohmann::json::parse(in);
    prompt_ = golden_["prompt_ids"].get<Ids>();
  }
  model::Decoder decoder() const {
    return {model_->config, model_->table, model_->weights, 128, DType::f32};
  }
  /// Returns the maximum distance between some logits and transformers' after `position`.
  double distance(std::span<const float> logits, std::size_t position) const {
    double most = 0;
    for (std::size_t i = 0; i < golden_["some_ids"].size(); ++i)
      most = std::fmax(most, std::abs(logits[golden_["some_ids"][i].get<std::size_t>()] -
                                      golden_["logits"][position][i].get<double>()));
    return most;
  }

  std::unique_ptr<LoadedModel> model_;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  nlohmann::json golden_;
  Ids prompt_;
};

TEST_F(SmolLM2, TextBecomesTheTokensOfTransformers) {
  EXPECT_EQ(tokenizer_->encode(golden_["prompt"].get<std::string>()), prompt_);
  EXPECT_EQ(tokenizer_->decode(golden_["greedy_ids"].get<Ids>()),
            golden_["greedy_text"].get<std::string>());
}

TEST_F(SmolLM2, LogitsAreThoseOfTransformers) {
  auto token_by_token = decoder();
  double most = 0;
  for (std::size_t i = 0; i < prompt_.size(); ++i)
    most = std::fmax(most, distance(token_by_token.feed({&prompt_[i], 1}), i));
  auto at_once = decoder();
  most = std::fmax(most, distance(at_once.feed(prompt_), prompt_.size() - 1));
  RecordProperty("largest_distance", std::to_string(most));
  EXPECT_LT(most, 2e-4);
}

TEST_F(SmolLM2, WritesTheTextOfTransformers) {
  const auto expected = golden_["greedy_ids"].get<Ids>();
  auto writer = decoder();
  model::TokenSampler sampler({});
  Ids written;
  auto logits = writer.feed(prompt_);
  while (written.size() < expected.size()) {
    written.push_back(sampler.choose(logits));
    logits = writer.feed({&written.back(), 1});
  }
  EXPECT_EQ(written, expected);
}

}  // namespace
}  // namespace llamesh::app
