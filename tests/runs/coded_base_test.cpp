#include <gtest/gtest.h>

#include <string>

#include "checkpoint/models/hf_export.hpp"
#include "runs/whole_run.hpp"
#include "support.hpp"

// Adapters are trained beside a base model that is kept as codes (model.lora.base).

namespace llamesh::test {
namespace {

using enum sharding::Strategy;
using model::BaseDType;

/// A model whose parts have whole codes on four tensor ranks.
train::Inputs model_inputs(const std::filesystem::path& folder) {
  auto in = inputs_in(folder);
  in.model.hidden_size = 64;
  in.model.intermediate_size = 256;
  in.model.num_attention_heads = 4;
  in.model.num_key_value_heads = 2;
  in.model.head_dim = 64;
  in.model.vocab_size = 259;
  in.train.global_batch = 8;
  in.optimizer.lr = 3e-3;
  in.optimizer.eps = 1e-5;  // beside an untrained base model, gradients are small at first
  return in;
}

train::Inputs coded_inputs(const std::filesystem::path& folder, BaseDType base) {
  auto in = model_inputs(folder);
  in.model.lora = model::Lora{.rank = 3, .alpha = 7, .base = base};
  return in;
}

TEST(CodedBase, TrainsAlikeOnEveryMesh) {
  const SharedFolder folder;
  auto in = coded_inputs(folder.path(), BaseDType::nf4);
  const auto alone = run_alone(in);
  EXPECT_LT(alone.losses.back(), alone.losses.front());
  auto plain = in;
  plain.model.lora->base = BaseDType::automatic;
  EXPECT_NE(run_alone(plain).losses.front(), alone.losses.front());
  const int ranks = world().size();
  for (const int tensor : {1, 2, 4}) {
    if (ranks % tensor != 0) continue;
    in.mesh.tensor = tensor;
    in.mesh.ranks_per_node = ranks % 2 == 0 && ranks > tensor ? ranks / 2 : 0;
    for (const auto strategy : {full_shard, no_shard, hybrid_shard_zero2}) {
      SCOPED_TRACE(fmt::format("tensor {}, {}", tensor, sharding::name_of(strategy)));
      in.sharding.strategy = strategy;
      expect_alike(run(world(), in), alone);
    }
  }
}

TEST(CodedBase, TrainsAlikeWithEveryMemoryOption) {
  const SharedFolder folder;
  auto in = coded_inputs(folder.path(), BaseDType::int8);
  const auto alone = run_alone(in);
  in.sharding.strategy = full_shard;
  for (const auto offload : {sharding::Offload::optimizer, sharding::Offload::all}) {
    in.sharding.offload = offload;
    expect_alike(run(world(), in), alone);
  }
  in.sharding.offload = sharding::Offload::none;
  in.sharding.wrap.wrap = sharding::Wrap::size;
  in.sharding.wrap.min_numel = 1000;
  expect_alike(run(world(), in), alone);
  in.sharding.wrap = {};
  in.memory.activation_checkpointing = model::ActivationCheckpointing::full;
  in.mesh.ranks_per_node = 1;  // shards do not share memory
  for (const auto reshard :
       {sharding::ReshardAfterForward::by_strategy, sharding::ReshardAfterForward::no}) {
    in.sharding.reshard_after_forward = reshard;
    expect_alike(run(world(), in), alone);
  }
}

TEST(CodedBase, IsGatheredFromSecondaryShards) {
  const int ranks = world().size();
  if (ranks % 4 != 0) GTEST_SKIP() << "secondary shards need two ranks on each of two nodes";
  const SharedFolder folder;
  auto in = coded_inputs(folder.path(), BaseDType::nf4);
  const auto alone = run_alone(in);
  in.sharding.strategy = full_shard;
  in.mesh.ranks_per_node = ranks / 2;
  in.sharding.reshard_after_forward = static_cast<sharding::ReshardAfterForward>(ranks / 2);
  expect_alike(run(world(), in), alone);
}

TEST(CodedBase, HasExpertsToo) {
  const SharedFolder folder;
  auto in = coded_inputs(folder.path(), BaseDType::nf4);
  in.model.family = "mixtral";
  in.model.num_experts = 4;
  in.model.num_experts_per_tok = 2;
  in.model.lora->targets = {"q_proj", "o_proj"};
  const auto alone = run_alone(in);
  in.mesh.expert = world().size() % 2 == 0 ? 2 : 1;
  expect_alike(run(world(), in), alone);
}

/// Returns inputs for a run that starts from a folder, which a run without adapters makes first.
train::Inputs inputs_from_folder(const std::filesystem::path& folder, BaseDType base) {
  auto first = model_inputs(folder);
  first.run.folder += "-base";
  run_to_the_end(first);
  const auto original = folder / "original";
  checkpoint::export_hf(checkpoint_of(first, "12"), original, {}, world());
  auto in = coded_inputs(folder, base);
  in.sharding.strategy = full_shard;
  in.pretrained.hf = original.string();
  in.pretrained.load_weights = true;
  return in;
}

/// Returns the adapters and the merged model in a run's last checkpoint.
std::vector<float> trained(const train::Inputs& in) {
  const auto table = parameter_table(in.model.resolved());
  const std::filesystem::path saved = checkpoint_of(in, "12");
  std::vector<float> adapters;
  for (const auto& parameter : table.parameters)
    if (!parameter.frozen)
      std::ranges::copy(dataset(in, "12", "/model/" + parameter.name),
                        std::back_inserter(adapters));
  const auto merged = checkpoint::merge_adapters(
      checkpoint::open_model(saved, checkpoint::read_manifest(saved), table), in.model.resolved(),
      table);
  const auto base = parameter_table(in.model.resolved().base());
  std::ranges::copy(stored_weights(*merged, base), std::back_inserter(adapters));
  return adapters;
}

/// A run that keeps a folder's weights as codes computes the same as one that starts from a folder
/// with the rounded weights.
TEST(CodedBase, IsTheFolderRounded) {
  const SharedFolder folder;
  const auto from_folder = inputs_from_folder(folder.path(), BaseDType::nf4);
  for (const auto& [form, dtype] :
       {std::pair(BaseDType::int8, DType::bf16), std::pair(BaseDType::nf4, DType::f32)}) {
    if (sanitized && form == BaseDType::int8) continue;
    const auto name = fmt::format("-{}-{}", name_in_inputs(form), name_of(dtype));
    SCOPED_TRACE(name);
    auto in = from_folder;
    in.run.folder += name;
    in.model.lora->base = form;
    in.precision.parameters = dtype;
    // Adapters that are as they start add nothing.
    auto untrained = in;
    untrained.run.folder += "-0";
    untrained.train.steps = 1;
    untrained.checkpoint.every_steps = 1;
    untrained.optimizer.lr = 1e-30;
    run_to_the_end(untrained);
    const auto rounded = folder.path() / ("rounded" + name);
    checkpoint::export_hf(checkpoint_of(untrained, "01"), rounded, {}, world());
    auto expected = in;
    expected.run.folder += "-rounded";
    expected.model.lora->base = BaseDType::automatic;
    expected.pretrained.hf = rounded.string();
    for (const auto load : {checkpoint::ReadBy::each_rank, checkpoint::ReadBy::rank0}) {
      in.pretrained.load = load;
      in.run.folder += "x";
      run_to_the_end(in);
    }
    run_to_the_end(expected);
    EXPECT_EQ(trained(in), trained(expected));
    auto first = in;
    first.run.folder.pop_back();
    EXPECT_EQ(trained(first), trained(in));
  }
}

TEST(CodedBase, ResumesExactly) {
  const SharedFolder folder;
  auto in = inputs_from_folder(folder.path(), BaseDType::nf4);
  run_to_the_end(in);
  const auto unbroken = trained(in);
  world().barrier();
  if (world().rank() == 0)
    for (const auto* step : {"10", "12"}) std::filesystem::remove_all(checkpoint_of(in, step));
  world().barrier();
  run_to_the_end(in);
  EXPECT_EQ(trained(in), unbroken);
  auto other = in.model.resolved();
  other.lora->base = BaseDType::int8;
  EXPECT_EQ(difference(in.model.resolved(), other), "model.lora.base is int8 (it was nf4)");
}

TEST(CodedBase, CombinationsThatAreNotThereAreRefused) {
  const SharedFolder folder;
  auto in = coded_inputs(folder.path(), BaseDType::nf4);
  const auto error = [&] {
    return error_of([&] { train::plan_setup(in, comm::discover_topology(world(), 0)); });
  };
  in.checkpoint.base = checkpoint::BaseWeights::include;
  EXPECT_NE(error().find("leave checkpoint.base out"), std::string::npos) << error();
  in.checkpoint.base = checkpoint::BaseWeights::reference;
  in.mesh.tensor = 2;
  in.model.intermediate_size = 96;
  if (world().size() % 2 == 0) {
    EXPECT_NE(error().find("down_proj.weight has 48, which is no multiple; use fewer ranks along"),
              std::string::npos)
        << error();
  }
  in.mesh.tensor = 1;
  in.model.hidden_size = 65;
  in.model.intermediate_size = 97;
  EXPECT_NE(error().find("remove model.lora.base"), std::string::npos) << error();
}

}  // namespace
}  // namespace llamesh::test
