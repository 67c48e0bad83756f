#include "config/include.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "config/inputs.hpp"
#include "support.hpp"
#include "temporary_folder.hpp"

namespace llamesh::config {
namespace {

/// An input file with model.file, and a Hugging Face folder.
class NamedModel : public testing::Test {
 protected:
  NamedModel() {
    std::filesystem::create_directory(folder_.path("hf"));
    folder_.write("hf/config.json",
                  R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
                      "hidden_act": "silu", "hidden_size": 80, "intermediate_size": 96,
                      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
                      "vocab_size": 300, "rms_norm_eps": 1e-5, "tie_word_embeddings": false})");
    folder_.write("m.yaml", "hidden_size: 96\n");
    folder_.write("other.yaml", "hidden_size: 112\n");
    folder_.write("run.yaml",
                  "model: {file: m.yaml, load_weights: false, vocab_size: 500}\ntrain: {steps: "
                  "20}\ndata: {train: a}\n");
  }
  Inputs load(const std::vector<std::string>& overrides) const {
    return load_inputs(folder_.path("run.yaml"), overrides);
  }
  const test::TemporaryFolder folder_;
};

TEST_F(NamedModel, OnTheCommandLineReplacesThatOfTheFile) {
  const auto hf = load({"model.hf=" + folder_.path("hf")});
  EXPECT_EQ(hf.model.hidden_size, 80);
  EXPECT_EQ(hf.model.vocab_size, 300);
  EXPECT_TRUE(hf.pretrained.load_weights);
  ASSERT_EQ(hf.notes.size(), 1U);
  EXPECT_EQ(hf.notes.front(), "model.hf on the command line replaces the model in " +
                                  folder_.path("run.yaml") +
                                  ": model.file, model.load_weights, model.vocab_size");
  const auto file = load({"model.file=" + folder_.path("other.yaml"), "model.vocab_size=400"});
  EXPECT_EQ(file.model.hidden_size, 112);
  EXPECT_EQ(file.model.vocab_size, 400);
  folder_.write("run.yaml", "model: {hf: hf, load_weights: true}\ndata: {train: a}\n");
  const auto no_hf = load({"model.file=" + folder_.path("other.yaml")});
  EXPECT_EQ(no_hf.model.hidden_size, 112);
  EXPECT_FALSE(no_hf.pretrained.load_weights);
}

TEST_F(NamedModel, OnTheCommandLineKeepsTheAdaptersOfTheFile) {
  folder_.write("run.yaml",
                "model: {file: m.yaml, lora: {rank: 4, targets: q_proj}}\ndata: {train: a}\n");
  const auto in = load({"model.hf=" + folder_.path("hf"), "model.lora.alpha=3"});
  EXPECT_EQ(in.model.hidden_size, 80);
  ASSERT_TRUE(in.model.lora.has_value());
  EXPECT_EQ(in.model.lora->rank, 4);
  EXPECT_EQ(in.model.lora->alpha, 3);
  EXPECT_EQ(in.model.lora->targets, std::vector<std::string>{"q_proj"});
  EXPECT_EQ(to_yaml(parse_inputs(to_yaml(in), "config.yaml", {})), to_yaml(in));
}

TEST_F(NamedModel, AdaptersHaveTheOptionsOfTheirFolder) {
  std::filesystem::create_directory(folder_.path("peft"));
  folder_.write("peft/adapter_config.json",
                R"({"peft_type": "LORA", "r": 5, "lora_alpha": 6, "use_rslora": true,
                    "target_modules": ["v_proj", "q_proj"]})");
  folder_.write("run.yaml", "model: {hf: hf, lora: {from: peft, alpha: 7}}\ndata: {train: a}\n");
  const auto in = load({});
  EXPECT_EQ(in.pretrained.adapters, folder_.path("peft"));
  ASSERT_TRUE(in.model.lora.has_value());
  EXPECT_EQ(in.model.lora->rank, 5);
  EXPECT_EQ(in.model.lora->alpha, 7);
  EXPECT_TRUE(in.model.lora->rslora);
  EXPECT_EQ(in.model.lora->targets, (std::vector<std::string>{"q_proj", "v_proj"}));
  folder_.write("peft/adapter_config.json",
                R"({"r": 5, "lora_alpha": 6, "target_modules": ["q_proj", "absent"]})");
  const auto without = load({});
  EXPECT_EQ(without.model.lora->targets, (std::vector<std::string>{"q_proj"}));
  EXPECT_EQ(without.notes,
            (std::vector<std::string>{
                "model.lora.from: skipping adapters for absent, which the model does not have"}));
  const auto error = test::error_of([&] { load({"model.lora.from=" + folder_.path("hf")}); });
  EXPECT_NE(error.find("has no adapter_config.json"), std::string::npos) << error;
}

TEST_F(NamedModel, IsNoneWhereItsNameIsEmpty) {
  const auto in = load({"model.file="});
  EXPECT_EQ(in.model.hidden_size, model::ModelConfig{}.hidden_size);
  EXPECT_EQ(in.model.vocab_size, 500);
  EXPECT_EQ(load({"model.hf="}).model.hidden_size, 96);
}

TEST_F(NamedModel, TwiceOnTheCommandLineIsAnError) {
  const auto error = test::error_of([&] {
    load({"model.hf=" + folder_.path("hf"), "model.file=" + folder_.path("m.yaml")});
  });
  EXPECT_EQ(error,
            "command line: model.hf and model.file both give the model's shape; keep one of them");
}

TEST_F(NamedModel, ThatDoesNotExistIsNamedWithItsKey) {
  EXPECT_EQ(test::error_of([&] { load({"model.hf=" + folder_.path("none")}); }),
            "command line: model.hf: " + folder_.path("none") + " does not exist");
  std::filesystem::create_directory(folder_.path("adapter"));
  folder_.write("adapter/adapter_config.json", "{}");
  const auto adapter = folder_.path("adapter");
  EXPECT_EQ(
      test::error_of([&] { load({"model.hf=" + adapter}); }),
      "command line: model.hf: " + adapter +
          " holds adapters only; name their base model there, and model.lora.from=" + adapter);
  EXPECT_TRUE(test::error_of([&] { load({"model.hf=meta-llama/Llama-3.2-1B"}); })
                  .ends_with("download it first: hf download meta-llama/Llama-3.2-1B "
                             "--local-dir meta-llama/Llama-3.2-1B"));
  EXPECT_EQ(test::error_of([&] { load({"model.file=" + folder_.path("none")}); }),
            "command line: model.file: '" + folder_.path("none") + "' does not exist");
}

TEST_F(NamedModel, IsTheDefaultWhereThereIsNone) {
  EXPECT_TRUE(load({}).notes.empty());
  folder_.write("run.yaml", "data: {train: a}\n");
  const auto notes = load({}).notes;
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes.front().find("names no model; training the default: 4 layers, hidden_size "
                               "256, vocab_size 256, 3.3 million parameters"),
            std::string::npos)
      << notes.front();
}

TEST_F(NamedModel, StepsAndEpochsOfTheCommandLineReplaceEachOther) {
  EXPECT_EQ(load({"train.epochs=2"}).train.steps, 0);
  EXPECT_EQ(load({"train.epochs=2"}).train.epochs, 2);
  folder_.write("run.yaml", "train: {epochs: 3}\ndata: {train: a}\n");
  EXPECT_EQ(load({"train.steps=7"}).train.steps, 7);
  EXPECT_EQ(load({"train.steps=7"}).train.epochs, 0);
}

}  // namespace
}  // namespace llamesh::config
