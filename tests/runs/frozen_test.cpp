#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/format/state_reader.hpp"
#include "checkpoint/models/hf_export.hpp"
#include "checkpoint/models/stored_model.hpp"
#include "device/memory_meter.hpp"
#include "model/description/config_json.hpp"
#include "runs/whole_run.hpp"
#include "support.hpp"

// Whole runs with frozen parameters: alike on every mesh, with the state and the traffic of the
// trained parameters only, and resumed exactly from checkpoints that refer to their base model.

namespace llamesh::test {
namespace {

using model::ActivationCheckpointing;
using sharding::Offload;
using sharding::Strategy;
using sharding::Wrap;
using Patterns = std::vector<std::string>;

// The lowest layer; parts of layers and all norms; all but the head.
const Patterns lowest{"model.embed_tokens", "model.layers.0", "model.layers.1.mlp"};
const Patterns parts{"*.q_proj", "*.v_proj", "*.down_proj", "*norm", "lm_head"};
const Patterns all_but_head{"model"};

struct FrozenRunCase {
  Patterns freeze;
  int replicate = 0, shard = 0, tensor = 1, expert = 1;  ///< 0: by the strategy
  Strategy strategy = Strategy::hybrid_shard;
  Wrap wrap = Wrap::layer;
  ActivationCheckpointing recompute = ActivationCheckpointing::none;
  int resharded_to = 0;  ///< ranks, as in sharding.reshard_after_forward
  sharding::ResidualLayout residual = sharding::ResidualLayout::sequence;

  bool is_for(int ranks) const {
    return replicate == 0 ? ranks == 4 : replicate * shard * tensor * expert == ranks;
  }
};

train::Inputs inputs_of_frozen(const FrozenRunCase& c, const TemporaryFolder& folder) {
  auto in = small_inputs(folder.path());
  in.train.steps = 6;
  in.train.global_batch = 24;
  in.train.trained.freeze = c.freeze;
  in.model.hidden_size = 48;
  in.model.intermediate_size = 60;
  in.model.num_attention_heads = 12;
  in.model.num_key_value_heads = 4;
  in.model.vocab_size = 264;
  if (c.expert > 1) {
    in.model.family = "mixtral";
    in.model.num_experts = 4;
    in.model.num_experts_per_tok = 2;
    in.model.router_z_loss_coef = 0.01;
    std::erase_if(in.train.trained.freeze, [](const std::string& name) {
      return name.ends_with("mlp") || name.ends_with("down_proj");
    });
    in.train.trained.freeze.push_back("model.layers.*.block_sparse_moe.gate");
    in.train.trained.freeze.push_back("model.layers.1.block_sparse_moe.experts.*.w2.weight");
  }
  in.sharding.strategy = c.strategy;
  in.sharding.wrap = {c.wrap, 2500};
  in.memory.activation_checkpointing = c.recompute;
  in.tensor.residual = c.residual;
  if (c.resharded_to > 0)
    in.sharding.reshard_after_forward = sharding::ReshardAfterForward{c.resharded_to};
  in.mesh = {.replicate = c.replicate, .shard = c.shard, .expert = c.expert, .tensor = c.tensor};
  if (c.replicate == 0 && world().size() % 2 == 0) in.mesh.ranks_per_node = world().size() / 2;
  return in;
}

class FrozenRuns : public testing::TestWithParam<FrozenRunCase> {};

TEST_P(FrozenRuns, GiveTheLossesOfOneRank) {
  if (!GetParam().is_for(world().size())) return;  // for another rank count
  const TemporaryFolder folder;
  auto in = inputs_of_frozen(GetParam(), folder);
  const auto seen = run(world(), in);
  in.sharding.reshard_after_forward = sharding::ReshardAfterForward::by_strategy;
  const auto alone = run_alone(in);
  EXPECT_LT(alone.losses.back(), alone.losses.front()) << "the run learnt nothing";
  for (std::size_t i = 0; i < seen.losses.size(); ++i) {
    EXPECT_NEAR(seen.losses[i], alone.losses[i], 1e-5 * alone.losses[i]) << "step " << i + 1;
    EXPECT_NEAR(seen.norms[i], alone.norms[i], 1e-3 * alone.norms[i]) << "step " << i + 1;
  }
}

using enum ActivationCheckpointing;
using enum sharding::ResidualLayout;
INSTANTIATE_TEST_SUITE_P(
    Strategies, FrozenRuns,
    testing::Values(
        FrozenRunCase{.freeze = lowest, .strategy = Strategy::full_shard},
        FrozenRunCase{.freeze = parts, .strategy = Strategy::full_shard, .wrap = Wrap::size},
        FrozenRunCase{.freeze = all_but_head, .strategy = Strategy::full_shard},
        FrozenRunCase{.freeze = lowest, .strategy = Strategy::full_shard, .resharded_to = 2},
        FrozenRunCase{.freeze = lowest, .strategy = Strategy::shard_grad_op, .recompute = full},
        FrozenRunCase{.freeze = parts, .strategy = Strategy::shard_grad_op, .wrap = Wrap::none},
        FrozenRunCase{.freeze = lowest, .strategy = Strategy::no_shard},
        FrozenRunCase{.freeze = parts, .recompute = selective},
        FrozenRunCase{.freeze = lowest, .wrap = Wrap::size, .recompute = full},
        FrozenRunCase{.freeze = all_but_head, .wrap = Wrap::none},
        FrozenRunCase{.freeze = parts, .strategy = Strategy::hybrid_shard_zero2}));
INSTANTIATE_TEST_SUITE_P(
    Meshes, FrozenRuns,
    testing::Values(
        FrozenRunCase{lowest, 1, 1}, FrozenRunCase{lowest, 1, 2}, FrozenRunCase{parts, 3, 1},
        FrozenRunCase{lowest, 1, 3}, FrozenRunCase{parts, 2, 2}, FrozenRunCase{lowest, 3, 2},
        FrozenRunCase{parts, 2, 4}, FrozenRunCase{lowest, 1, 1, 2}, FrozenRunCase{parts, 1, 1, 4},
        FrozenRunCase{lowest, 1, 2, 2},
        FrozenRunCase{.freeze = parts,
                      .replicate = 1,
                      .shard = 2,
                      .tensor = 2,
                      .wrap = Wrap::size,
                      .recompute = full,
                      .residual = hidden},
        FrozenRunCase{
            .freeze = all_but_head, .replicate = 2, .shard = 1, .tensor = 2, .residual = whole},
        FrozenRunCase{lowest, 2, 2, 2}, FrozenRunCase{lowest, 1, 1, 1, 2},
        FrozenRunCase{parts, 1, 2, 1, 2}, FrozenRunCase{lowest, 2, 1, 2, 2}));

TEST(FrozenOffload, GivesTheSameBits) {
  for (const auto strategy : {Strategy::full_shard, Strategy::no_shard})
    for (const auto dtype : {DType::f32, DType::bf16}) {
      const TemporaryFolder folder;
      auto in = inputs_of_frozen({.freeze = lowest, .strategy = strategy}, folder);
      in.train.steps = 3;
      in.precision.parameters = dtype;
      const auto plain = run(world(), in);
      for (const auto offload : {Offload::optimizer, Offload::all}) {
        in.sharding.offload = offload;
        const auto other = run(world(), in);
        EXPECT_EQ(other.losses, plain.losses);
        EXPECT_EQ(other.masters, plain.masters);
      }
      in.sharding.offload = Offload::none;
      in.memory.activation_offload = true;
      EXPECT_EQ(run(world(), in).losses, plain.losses);
    }
}

/// Elements of trained and of frozen units, padded to equal shards.
struct PaddedNumel {
  std::int64_t trained = 0, frozen = 0;
};
PaddedNumel padded_numel_of(const sharding::ShardLayout& layout) {
  PaddedNumel sum;
  for (const auto& unit : layout.units())
    (unit.frozen ? sum.frozen : sum.trained) += unit.padded_numel;
  return sum;
}

// docs/fine-tuning.md: 2 bytes a frozen element in bf16 and 16 a trained one, over the shards.
TEST(FrozenState, TakesTwoBytesAnElement) {
  const TemporaryFolder folder;
  auto in = inputs_of_frozen({.freeze = lowest, .strategy = Strategy::full_shard}, folder);
  in.precision.parameters = DType::bf16;
  in.sharding.keep_bf16_weights = sharding::KeepBf16Weights::no;
  const auto setup = plan::make_planned_setup(world(), in);
  comm::DeviceMesh mesh(world(), setup.topology, setup.mesh);
  const auto& meter = device::MemoryMeter::instance();
  const auto before = meter.in_use();
  const sharding::ShardedState state(*setup.layout, mesh, in.precision,
                                     optim::moments_of(in.optimizer), in.sharding);
  const auto numel = padded_numel_of(*setup.layout);
  const auto bytes = (16 * numel.trained + 2 * numel.frozen) / world().size();
  EXPECT_EQ(meter.in_use() - before, bytes);
  const auto trained = setup.table->trained_numel();
  const auto exact =
      static_cast<double>(16 * trained + 2 * (setup.table->numel() - trained)) / world().size();
  EXPECT_NEAR(static_cast<double>(bytes), exact, 0.02 * exact);
}

TEST(FrozenState, OnlyTrainedGradientsAreReduced) {
  const TemporaryFolder folder;
  auto in = inputs_of_frozen({.freeze = lowest, .strategy = Strategy::full_shard}, folder);
  in.train.steps = 2;
  in.train.global_batch = world().size();
  in.precision.parameters = DType::bf16;
  const auto setup = plan::make_planned_setup(world(), in);
  std::int64_t gathered = 0;
  const auto end = setup.table->backward_end();
  for (const auto& unit : setup.layout->units()) {
    const bool again =
        unit.modules.front() >= end && unit.modules.front() != setup.table->norm.module;
    gathered += (again ? 2 : 1) * unit.padded_numel;
  }
  const std::int64_t n = world().size();
  EXPECT_EQ(run(world(), in).traffic.at("shard"),
            (2 * gathered + 4 * padded_numel_of(*setup.layout).trained) * (n - 1) / n);
}

/// A base model: a folder exported from a short run.
std::filesystem::path make_base_folder(const std::filesystem::path& folder, const char* name,
                                       std::uint64_t seed) {
  auto in = inputs_in(folder);
  in.run.folder = (folder / name).string() + "-run";
  in.run.seed = seed;
  in.train.steps = 1;
  run_to_the_end(in);
  checkpoint::ExportOptions options;
  options.type = checkpoint::StoredType::bf16;
  checkpoint::export_hf(checkpoint_of(in, "01"), folder / name, options, world());
  return folder / name;
}

/// Inputs of a run that fine-tunes a base model.
train::Inputs tuning_inputs(const std::filesystem::path& folder,
                            const std::filesystem::path& base) {
  auto in = inputs_in(folder);
  in.model = model::read_config_json(base);
  in.pretrained.hf = base.string();
  in.pretrained.load_weights = true;
  in.train.trained.freeze = lowest;
  in.precision.parameters = DType::bf16;
  in.sharding.strategy = Strategy::full_shard;
  return in;
}

/// Removes the newer checkpoints, as if they had never been committed.
void keep_step_5(const train::Inputs& in) {
  world().barrier();
  if (world().rank() == 0)
    for (const auto* step : {"10", "12"}) std::filesystem::remove_all(checkpoint_of(in, step));
  world().barrier();
}

std::vector<float> weights_in(const std::filesystem::path& path, const model::ModelConfig& config) {
  const auto table = parameter_table(config);
  return stored_weights(*checkpoint::open_model(checkpoint::locate(path.string()), config, table),
                        table);
}

// They hold the trained weights; each resume reads the frozen ones from the base model.
TEST(FrozenMemoryCheckpoints, ReferToTheBaseModel) {
  const SharedFolder folder;
  const auto base = make_base_folder(folder.path(), "base", 1);
  auto in = tuning_inputs(folder.path(), base);
  run_to_the_end(in);
  const auto unbroken = weights_in(checkpoint_of(in, "12"), in.model);
  in.run.folder += "-killed";
  in.checkpoint.memory.every_steps = 3;
  train_and_vanish(in, 8);
  run_to_the_end(in);
  EXPECT_EQ(train::read_run_state(in.run.folder)->first_step, 6);
  EXPECT_EQ(weights_in(checkpoint_of(in, "12"), in.model), unbroken);
}

class FrozenCheckpoints : public testing::TestWithParam<checkpoint::BaseWeights> {};

TEST_P(FrozenCheckpoints, ResumeExactlyAndHoldTheWholeModel) {
  const SharedFolder folder;
  const auto base = make_base_folder(folder.path(), "base", 1);
  auto in = tuning_inputs(folder.path(), base);
  in.checkpoint.base = GetParam();
  in.checkpoint.async = GetParam() == checkpoint::BaseWeights::include;
  run_to_the_end(in);
  const bool refers = GetParam() == checkpoint::BaseWeights::reference;
  const auto manifest = checkpoint::read_manifest(checkpoint_of(in, "12"));
  EXPECT_EQ(manifest.progress.base.has_value(), refers);
  EXPECT_EQ(manifest.find("/model/model.embed_tokens.weight") == nullptr, refers);
  EXPECT_EQ(manifest.find("/optimizer/exp_avg/model.embed_tokens.weight"), nullptr);
  EXPECT_NE(manifest.find("/model/lm_head.weight"), nullptr);
  const auto trained = weights_in(checkpoint_of(in, "12"), in.model);

  // On the same mesh to the bit, with rank 0 reading the base for all ranks.
  keep_step_5(in);
  in.pretrained.load = checkpoint::ReadBy::rank0;
  run_to_the_end(in);
  EXPECT_EQ(weights_in(checkpoint_of(in, "12"), in.model), trained);

  const auto exported = folder.path() / "exported";
  checkpoint::ExportOptions options;
  options.type = checkpoint::StoredType::f32;
  checkpoint::export_hf(checkpoint_of(in, "12"), exported, options, world());
  EXPECT_EQ(weights_in(exported, in.model), trained);
  // The embedding comes first and is frozen: bf16 in the folder and in the run.
  const auto of_base = weights_in(base, in.model);
  const auto count = static_cast<std::ptrdiff_t>(in.model.vocab_size * in.model.hidden_size);
  EXPECT_TRUE(std::equal(of_base.begin(), of_base.begin() + count, trained.begin()));

  // On another mesh, with the frozen weights wherever they are.
  keep_step_5(in);
  in.sharding.strategy = Strategy::no_shard;
  run_to_the_end(in);
  const auto elsewhere = weights_in(checkpoint_of(in, "12"), in.model);
  for (std::size_t i = 0; i < trained.size(); ++i) ASSERT_NEAR(elsewhere[i], trained[i], 0.02) << i;
}

INSTANTIATE_TEST_SUITE_P(Base, FrozenCheckpoints,
                         testing::Values(checkpoint::BaseWeights::reference,
                                         checkpoint::BaseWeights::include));

TEST(FrozenCheckpoint, RefusesABaseThatHasChangedOrIsGone) {
  const SharedFolder folder;
  const auto base = make_base_folder(folder.path(), "base", 1);
  const auto other = make_base_folder(folder.path(), "other", 2);
  auto in = tuning_inputs(folder.path(), base);
  run_to_the_end(in);
  keep_step_5(in);
  const auto error = [&] {
    world().barrier();
    auto message = error_of([&] { weights_in(checkpoint_of(in, "05"), in.model); });
    world().barrier();
    return message;
  };
  const auto rename = [&](const auto& from, const auto& to) {
    if (world().rank() == 0) std::filesystem::rename(from, to);
    world().barrier();
  };
  const auto moved = folder.path() / "moved";
  rename(base, moved);
  EXPECT_EQ(error(), "the base model " + base.string() +
                         " is gone, and the checkpoint refers to it for the frozen weights; put it "
                         "back, or continue the run with model.hf set to a copy");
  rename(other, base);
  EXPECT_NE(error().find("the base model " + base.string() + " has changed: its frozen weights"),
            std::string::npos);
  in.pretrained.hf = moved.string();
  run_to_the_end(in);
  EXPECT_EQ(checkpoint::read_manifest(checkpoint_of(in, "12")).progress.base->path, moved.string());
}

TEST(FrozenCheckpoint, RefusesOtherParametersToTrain) {
  const SharedFolder folder;
  auto in = inputs_in(folder.path());
  in.train.steps = 5;
  in.train.trained.freeze = {"model.layers.0"};
  run_to_the_end(in);
  const auto manifest = checkpoint::read_manifest(checkpoint_of(in, "05"));
  const auto error = [&](const Patterns& freeze) {
    in.train.trained.freeze = freeze;
    const auto setup = plan::make_planned_setup(world(), in);
    const checkpoint::State state{
        *setup.layout, world().rank(), {{"/model", {}}, {"/optimizer/exp_avg", {}}}};
    return error_of([&] { check_fits(manifest, state, checkpoint::OtherGroups::ignore); });
  };
  EXPECT_NE(error({"model.layers.0", "lm_head"})
                .find("the run freezes lm_head.weight, which the checkpoint has trained"),
            std::string::npos);
  EXPECT_NE(error({"model.layers.0.mlp"})
                .find("the run trains model.layers.0.self_attn.q_proj.weight, which was frozen"),
            std::string::npos);
}

}  // namespace
}  // namespace llamesh::test
