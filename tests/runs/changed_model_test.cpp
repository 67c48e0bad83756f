#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "checkpoint/format/state_reader.hpp"
#include "runs/whole_run.hpp"
#include "support.hpp"
#include "train/run/resume.hpp"

// Runs that continue after somebody has changed their model.

namespace llamesh::test {
namespace {

using ModelChange = std::function<void(model::ModelConfig&)>;

class ChangedModel : public testing::Test {
 protected:
  ChangedModel() {
    in_.train.steps = 2;
    in_.checkpoint.every_steps = 0;
  }
  std::string saved() const { return checkpoint_of(in_, "02"); }
  train::OwnRun own(std::int64_t step_on_disk = 2) const {
    return {in_.run.folder + "/checkpoints", step_on_disk};
  }
  /// Compares a changed model with the checkpoint's.
  void check(const ModelChange& change, const std::optional<train::OwnRun>& own) const {
    auto config = in_.model;
    change(config);
    train::check_model(checkpoint::read_manifest(saved()).progress, config.resolved(), own);
  }
  /// Returns how a run with the changed model is refused. (In this process only a run that ends
  /// well can be tested; tests/faults has one that does not.)
  std::string refusal(const ModelChange& change, const std::optional<train::OwnRun>& own) const {
    return error_of([&] { check(change, own); });
  }

  SharedFolder folder_;
  train::Inputs in_ = inputs_in(folder_.path());
};

void take_fewer_heads(model::ModelConfig& config) {
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.head_dim = 18;
}

TEST_F(ChangedModel, IsRefusedAlsoWhereTheWeightsFit) {
  run_to_the_end(in_);
  const std::string changed =
      "the model has changed since step 2: model.num_attention_heads is 2 (it was 6), "
      "model.num_key_value_heads is 1 (it was 3), model.head_dim is 18 (it was 6); set it back, "
      "or, to ";
  EXPECT_EQ(
      refusal(take_fewer_heads, own()),
      changed + "continue with this one, set another run.name and checkpoint.resume=" + saved());
  EXPECT_EQ(refusal(take_fewer_heads, own(-1)),
            changed +
                "start again with this one, set another run.name (that step is only in the nodes' "
                "memory)");
}

TEST_F(ChangedModel, IsRefusedByItsKeyWhereTheWeightsDoNotFit) {
  run_to_the_end(in_);
  const ModelChange fewer_layers = [](auto& config) { config.num_hidden_layers = 2; };
  EXPECT_EQ(refusal(fewer_layers, own()),
            "the model has changed since step 2: model.num_hidden_layers is 2 (it was 3); set it "
            "back, or, to start again with this one, set another run.name");
  EXPECT_EQ(refusal(fewer_layers, std::nullopt),
            "the model has changed since step 2: model.num_hidden_layers is 2 (it was 3); set it "
            "back, or, to start with this one, leave checkpoint.resume out");
  const ModelChange adapters = [](auto& config) { config.lora.emplace(); };
  EXPECT_EQ(refusal(adapters, own()),
            "the model has changed since step 2: model.lora is set (it was null); set it back, or, "
            "to change the adapters, export the checkpoint with llamesh convert and start a new "
            "run from that folder (model.hf)");
}

TEST_F(ChangedModel, IsRefusedByItsAdapters) {
  in_.model.lora = model::Lora{.rank = 3, .alpha = 7};
  run_to_the_end(in_);
  EXPECT_NE(refusal(
                [](auto& config) {
                  config.lora->alpha = 64;
                  config.lora->rslora = true;
                },
                own())
                .find("model.lora.alpha is 64 (it was 7), model.lora.rslora is true (it was "
                      "false); set it back, or, to continue"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& config) { config.lora->rank = 4; }, own())
                .find("model.lora.rank is 4 (it was 3); set it back, or, to change the adapters, "
                      "export the checkpoint with llamesh convert --merge"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& config) { config.lora->targets = {"q_proj"}; }, own())
                .find("model.lora.targets is [\"q_proj\"] (it was [\"all-linear\"])"),
            std::string::npos);
  in_.model.lora->targets = {"*_proj"};  // the same linear layers
  in_.train.steps = 3;
  run_to_the_end(in_);
  EXPECT_TRUE(std::filesystem::exists(checkpoint_of(in_, "03")));
}

TEST_F(ChangedModel, IsGoneOnWithUnderAnotherName) {
  run_to_the_end(in_);
  in_.checkpoint.resume = saved();
  in_.run.folder += "-on";
  in_.train.steps = 3;
  take_fewer_heads(in_.model);
  run_to_the_end(in_);
  EXPECT_TRUE(std::filesystem::exists(checkpoint_of(in_, "03")));
}

TEST_F(ChangedModel, IsNotARopeAWindowOrAnEpsilon) {
  in_.model.family = "mistral";
  run_to_the_end(in_);
  in_.model.rope_theta = 5e5;
  in_.model.rope_scaling = {.rope_type = model::RopeType::linear, .factor = 4};
  in_.model.sliding_window = 16;
  in_.model.rms_norm_eps = 1e-6;
  in_.train.steps = 3;
  run_to_the_end(in_);
  EXPECT_TRUE(std::filesystem::exists(checkpoint_of(in_, "03")));
}

TEST_F(ChangedModel, IsNotAskedForByACheckpointThatDoesNotSay) {
  run_to_the_end(in_);
  auto progress = checkpoint::read_manifest(saved()).progress;
  auto config = in_.model;
  take_fewer_heads(config);
  for (const auto* text : {"", "{}", "{\"model_type\": \"lantern\"}"}) {
    progress.model_config = text;
    EXPECT_NO_THROW(train::check_model(progress, config.resolved(), own())) << text;
  }
}

}  // namespace
}  // namespace llamesh::test
