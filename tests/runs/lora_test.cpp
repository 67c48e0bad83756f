#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <fstream>
#include <string>

#include "checkpoint/format/state_reader.hpp"
#include "checkpoint/models/hf_export.hpp"
#include "checkpoint/models/peft_folder.hpp"
#include "model/description/config_json.hpp"
#include "model/description/lora.hpp"
#include "runs/whole_run.hpp"
#include "support.hpp"

// Adapters are trained on every kind of mesh, saved, exported and loaded.

namespace llamesh::test {
namespace {

using enum sharding::ResidualLayout;
using enum sharding::Strategy;

train::Inputs lora_inputs(const std::filesystem::path& folder) {
  auto in = inputs_in(folder);
  in.model.num_attention_heads = 4;
  in.model.num_key_value_heads = 2;
  in.model.head_dim = 10;
  in.model.vocab_size = 259;
  in.model.lora = model::Lora{.rank = 3, .alpha = 7, .rslora = true};
  in.train.global_batch = 24;
  in.optimizer.lr = 3e-3;
  in.optimizer.eps = 1e-5;  // beside an untrained base model, gradients are small at first
  return in;
}

TEST(Lora, TrainsAlikeOnEveryMesh) {
  const SharedFolder folder;
  auto in = lora_inputs(folder.path());
  const auto alone = run_alone(in);
  EXPECT_LT(alone.losses.back(), alone.losses.front());
  const int ranks = world().size();
  for (const int tensor : {1, 2, 4}) {
    if (ranks % tensor != 0) continue;
    in.mesh.tensor = tensor;
    in.mesh.ranks_per_node = ranks % 2 == 0 && ranks > tensor ? ranks / 2 : 0;
    for (const auto strategy : {full_shard, shard_grad_op, no_shard, hybrid_shard_zero2}) {
      in.tensor.residual = strategy == shard_grad_op ? whole
                           : strategy == no_shard    ? hidden
                                                     : sequence;
      SCOPED_TRACE(fmt::format("tensor {}, {}", tensor, sharding::name_of(strategy)));
      in.sharding.strategy = strategy;
      expect_alike(run(world(), in), alone);
    }
  }
}

TEST(Lora, TrainsAlikeWithEveryMemoryOption) {
  const SharedFolder folder;
  auto in = lora_inputs(folder.path());
  const auto alone = run_alone(in);
  in.mesh.tensor = world().size() % 2 == 0 ? 2 : 1;
  for (const auto checkpointing :
       {model::ActivationCheckpointing::selective, model::ActivationCheckpointing::full}) {
    in.memory.activation_checkpointing = checkpointing;
    expect_alike(run(world(), in), alone);
    in.memory.activation_offload = true;
    expect_alike(run(world(), in), alone);
    in.memory.activation_offload = false;
  }
  for (const auto offload : {sharding::Offload::optimizer, sharding::Offload::all}) {
    in.sharding.offload = offload;
    expect_alike(run(world(), in), alone);
  }
  in.sharding.offload = sharding::Offload::none;
  in.sharding.wrap.wrap = sharding::Wrap::size;
  in.sharding.wrap.min_numel = 1000;
  expect_alike(run(world(), in), alone);
}

// q, k and v share an A, which none of their units has.
TEST(Lora, LayersThatFoldersFuseTrainAlike) {
  const SharedFolder folder;
  auto in = lora_inputs(folder.path());
  in.model.family = "phi3";
  const auto alone = run_alone(in);
  in.mesh.context = world().size() % 2 == 0 ? 2 : 1;
  in.sharding.wrap = {.wrap = sharding::Wrap::size, .min_numel = 1};
  expect_alike(run(world(), in), alone);
}

TEST(Lora, SomeTargetsBesideExpertsTrainAlike) {
  const SharedFolder folder;
  auto in = lora_inputs(folder.path());
  in.model.family = "mixtral";
  in.model.num_experts = 4;
  in.model.num_experts_per_tok = 2;
  in.model.lora->targets = {"q_proj", "o_proj"};
  const auto alone = run_alone(in);
  in.mesh.expert = world().size() % 2 == 0 ? 2 : 1;
  expect_alike(run(world(), in), alone);
}

std::map<std::int64_t, double> step_losses(const std::filesystem::path& run) {
  std::map<std::int64_t, double> losses;
  std::ifstream in(run / "metrics.jsonl");
  for (std::string line; std::getline(in, line);)
    if (const auto entry = nlohmann::json::parse(line); !entry.contains("event"))
      losses[entry.at("step")] = entry.at("loss");
  return losses;
}

TEST(Lora, ResumesExactly) {
  const SharedFolder folder;
  for (const auto dtype : {DType::f32, DType::bf16}) {
    auto in = lora_inputs(folder.path());
    in.run.folder += name_of(dtype);
    in.precision.parameters = dtype;
    in.sharding.strategy = full_shard;
    run_to_the_end(in);
    const auto unbroken = step_losses(in.run.folder);
    ASSERT_EQ(unbroken.size(), 12U);
    if (world().rank() == 0)
      for (const auto* step : {"10", "12"}) std::filesystem::remove_all(checkpoint_of(in, step));
    world().barrier();
    run_to_the_end(in);
    EXPECT_EQ(step_losses(in.run.folder), unbroken);
  }
}

// PEFT matches the ends of names; a pattern would match nothing, and PEFT would not say so.
TEST(Lora, IsExportedWithoutPatterns) {
  const SharedFolder folder;
  auto in = lora_inputs(folder.path());
  in.model.lora->targets = {"layers.1.*_proj", "v_proj"};
  in.model = in.model.resolved();
  run_to_the_end(in);
  const auto adapters = folder.path() / "adapters";
  checkpoint::export_adapters(checkpoint_of(in, "12"), adapters, checkpoint::StoredType::f32,
                              "base", world());
  const auto exported = model::read_adapter_config(adapters);
  for (const auto& target : exported.targets) {
    EXPECT_TRUE(target.starts_with("model.layers.")) << target;
    EXPECT_EQ(target.find('*'), target.npos) << target;
  }
  auto again = in.model;
  again.lora = exported;
  EXPECT_EQ(adapters_by_weight(parameter_table(again)).size(),
            adapters_by_weight(parameter_table(in.model)).size());
}

/// Exports the adapters and the merged model, and reads both.
TEST(Lora, IsExportedMergedAndLoaded) {
  const SharedFolder folder;
  auto in = lora_inputs(folder.path());
  in.model = in.model.resolved();
  run_to_the_end(in);
  const std::filesystem::path saved = checkpoint_of(in, "12");
  const auto adapters = folder.path() / "adapters", merged = folder.path() / "merged";
  checkpoint::export_adapters(saved, adapters, checkpoint::StoredType::f32, "base", world());
  checkpoint::export_hf(saved, merged, {}, world());

  const auto table = parameter_table(in.model), base_table = parameter_table(in.model.base());
  const auto stored = checkpoint::open_model(saved, checkpoint::read_manifest(saved), table);
  EXPECT_EQ(to_adapter_config(model::read_adapter_config(adapters)),
            to_adapter_config(*in.model.lora));
  const checkpoint::PeftFolder exported(adapters, in.model, table);
  for (std::size_t p = 0; p < table.parameters.size(); ++p) {
    if (!is_adapter(table.parameters[p])) continue;
    const auto id = static_cast<model::ParameterId>(p);
    const auto whole = Box::whole(table[id].shape);
    std::vector<float> a(static_cast<std::size_t>(whole.numel())), b(a.size());
    stored->read(id, {whole, 0, whole.numel()}, a);
    exported.read(id, {whole, 0, whole.numel()}, b);
    EXPECT_EQ(a, b) << table[id].name;
  }
  const auto config = model::read_config_json(merged);
  EXPECT_EQ(model::to_config_json(config), model::to_config_json(in.model.base()));
  const auto in_folder = checkpoint::open_model(checkpoint::locate(merged), config, base_table);
  const auto in_checkpoint = checkpoint::merge_adapters(
      checkpoint::open_model(saved, checkpoint::read_manifest(saved), table), in.model, table);
  EXPECT_EQ(stored_weights(*in_folder, base_table), stored_weights(*in_checkpoint, base_table));
}

TEST(Lora, GoesOnFromAPeftFolder) {
  const SharedFolder folder;
  auto in = lora_inputs(folder.path());
  in.train.steps = 5;
  run_to_the_end(in);
  const std::filesystem::path saved = checkpoint_of(in, "05");
  const auto adapters = folder.path() / "adapters";
  checkpoint::export_adapters(saved, adapters, checkpoint::StoredType::f32, "", world());
  auto again = in;  // the base is drawn again from the same seed
  again.run.folder += "-again";
  again.pretrained.adapters = adapters.string();
  again.optimizer.lr = 1e-30;
  again.train.steps = 1;
  again.checkpoint.every_steps = 1;
  run_to_the_end(again);
  const std::filesystem::path copied = checkpoint_of(again, "01");
  const auto table = parameter_table(in.model.resolved());
  const auto weights = [&](const std::filesystem::path& path) {
    return stored_weights(*checkpoint::open_model(path, checkpoint::read_manifest(path), table),
                          table);
  };
  EXPECT_EQ(weights(copied), weights(saved));
}

TEST(Lora, CombinationsThatAreNotThereAreRefused) {
  const SharedFolder folder;
  auto in = lora_inputs(folder.path());
  in.train.trained.freeze = {"lm_head"};
  const auto error = [&] {
    return error_of([&] { train::plan_setup(in, comm::discover_topology(world(), 0)); });
  };
  EXPECT_NE(error().find("leave train.freeze and train.only out"), std::string::npos);
  in.train.trained.freeze.clear();
  in.sharding.spec.emplace();
  EXPECT_NE(error().find("sharding.spec cannot place the adapters"), std::string::npos);
}

}  // namespace
}  // namespace llamesh::test
