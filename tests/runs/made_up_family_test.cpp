#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "checkpoint/models/hf_export.hpp"
#include "checkpoint/models/hf_model.hpp"
#include "checkpoint/models/stored_model.hpp"
#include "model/description/config_json.hpp"
#include "model/description/family.hpp"
#include "runs/whole_run.hpp"
#include "sharding/tensor_placements.hpp"
#include "sharding/wrap_policy.hpp"

// A family that exists in this file only: it is trained on every kind of mesh, saved, exported and
// loaded, and nothing else in the program knows it.

namespace llamesh::test {
namespace {

using namespace model;

const Family& llama_family = llama_families().front();

/// Llama's table with a bias on every q_proj.
ParameterTable make_lantern_table(const ModelConfig& config) {
  auto table = llama_family.make_table(config);
  for (const auto layer : table.layers) {
    const auto q_proj = table.weight_module(table.child(layer, "self_attn"), "q_proj");
    const auto& weight = table[q_proj.weight];
    table.modules[index(q_proj.module)].parameters.push_back(
        static_cast<ParameterId>(table.parameters.size()));
    table.parameters.push_back({table[q_proj.module].name + ".bias",
                                {weight.shape[0]},
                                q_proj.module,
                                Initial::zeros,
                                weight.role,
                                weight.blocks});
  }
  return table;
}

bool is_stored_transposed(const std::string& name) {
  return name.ends_with("up_proj.weight");
}

/// `up_proj.weight` (out, in) is `rise.kernel` (in, out) in a folder.
StateDict lantern_state_dict(const ModelConfig& /*config*/, const ParameterTable& table) {
  auto dict = plain_state_dict(table);
  for (auto& tensor : dict) {
    if (!is_stored_transposed(tensor.name)) continue;
    tensor.name.replace(tensor.name.find("up_proj.weight"), std::string::npos, "rise.kernel");
    std::ranges::reverse(tensor.shape);
    tensor.parts[0].in_tensor = Box::whole(tensor.shape);
    tensor.parts[0].transposed = true;
  }
  return dict;
}

const Family lantern{.name = "lantern",
                     .architecture = "LanternForCausalLM",
                     .base_prefix = llama_family.base_prefix,
                     .read_config = llama_family.read_config,
                     .write_config = llama_family.write_config,
                     .keys = llama_family.keys,
                     .check = llama_family.check,
                     .make_table = make_lantern_table,
                     .traits = llama_family.traits,
                     .state_dict = lantern_state_dict};

class MadeUpFamily : public testing::Test {
  const ScopedFamily known_{lantern};
};

train::Inputs lantern_inputs(const std::filesystem::path& folder) {
  auto in = inputs_in(folder);
  in.model.family = "lantern";
  in.model.num_key_value_heads = 2;
  in.model.vocab_size = 257;
  return in;
}

void expect_losses_near(const std::vector<double>& losses, const std::vector<double>& expected) {
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(losses[i], expected[i], 2e-5) << "step " << i + 1;
}

TEST_F(MadeUpFamily, TrainsAlikeOnEveryMesh) {
  const SharedFolder folder;
  auto in = lantern_inputs(folder.path());
  const auto alone = run_alone(in);
  EXPECT_LT(alone.losses.back(), alone.losses.front());
  std::vector<int> tensor_sizes{1};
  if (world().size() % 2 == 0) tensor_sizes.push_back(2);
  for (const int tensor : tensor_sizes)
    for (const auto strategy : {sharding::Strategy::full_shard, sharding::Strategy::no_shard}) {
      SCOPED_TRACE(tensor);
      in.mesh.tensor = tensor;
      in.sharding.strategy = strategy;
      expect_losses_near(run(world(), in).losses, alone.losses);
    }
}

/// An axis that no option makes: its ranks hold copies of a shard and read other sequences.
TEST_F(MadeUpFamily, TrainsAlongAMadeUpAxis) {
  const SharedFolder folder;
  const auto in = lantern_inputs(folder.path());
  const auto alone = run_alone(in);
  const int ranks = world().size();
  const int copies = ranks % 2 == 0 ? 2 : 1;
  auto setup = train::make_setup(world(), in);
  setup.mesh =
      comm::ParallelDims({{"shard", ranks / copies}, {"made-up", copies, comm::Divides::batch}});
  auto placements = sharding::tensor_parallel_placements(*setup.table, setup.mesh, {});
  auto units = sharding::make_units(*setup.table, in.sharding.wrap, setup.mesh, placements);
  setup.layout = std::make_unique<const sharding::ShardLayout>(*setup.table, std::move(units),
                                                               setup.mesh, std::move(placements));
  comm::DeviceMesh mesh(world(), setup.topology, setup.mesh);
  train::Trainer trainer(world(), setup, mesh);
  trainer.start();
  std::vector<double> losses;
  while (trainer.step() < setup.inputs.train.steps) losses.push_back(trainer.train_step().loss);
  expect_losses_near(losses, alone.losses);
}

TEST_F(MadeUpFamily, IsSavedExportedAndLoaded) {
  const SharedFolder folder;
  auto in = lantern_inputs(folder.path());
  in.model = in.model.resolved();
  run_to_the_end(in);
  const auto saved = checkpoint_of(in, "12");
  const auto exported = folder.path() / "exported";
  checkpoint::ExportOptions options;
  options.max_shard_bytes = 20'000;
  checkpoint::export_hf(saved, exported, options, world());
  const auto config = read_config_json(exported);
  EXPECT_EQ(config.family, "lantern");
  const auto table = parameter_table(config);
  const auto trained =
      stored_weights(*checkpoint::open_model(checkpoint::locate(saved), config, table), table);
  const auto bias = std::ranges::find_if(table.parameters, [](const Parameter& p) {
    return p.name == "model.layers.0.self_attn.q_proj.bias";
  });
  ASSERT_NE(bias, table.parameters.end());
  EXPECT_EQ(
      stored_weights(*checkpoint::open_model(checkpoint::locate(exported), config, table), table),
      trained);
  for (const auto by : {checkpoint::ReadBy::each_rank, checkpoint::ReadBy::rank0}) {
    auto again = in;
    again.run.folder = (folder.path() / fmt::format("again{}", static_cast<int>(by))).string();
    again.pretrained = {.hf = exported.string(), .load_weights = true, .load = by};
    again.sharding.strategy = sharding::Strategy::full_shard;
    again.train.steps = 1;
    again.optimizer.lr = 1e-30;  // leaves every weight as it is
    again.optimizer.weight_decay = 0;
    run_to_the_end(again);
    EXPECT_EQ(stored_weights(*checkpoint::open_model(checkpoint::locate(checkpoint_of(again, "01")),
                                                     config, table),
                             table),
              trained);
  }
}

TEST_F(MadeUpFamily, AStoredTensorOfAnotherShapeIsNamed) {
  const SharedFolder folder;
  auto in = lantern_inputs(folder.path());
  in.model = in.model.resolved();
  run_to_the_end(in);
  const auto exported = folder.path() / "exported";
  checkpoint::export_hf(checkpoint_of(in, "12"), exported, {}, world());
  const auto table = parameter_table(in.model);
  const checkpoint::HfModel good(exported, in.model, table);
  EXPECT_NO_THROW(good.check_fits());
  auto as_llama = in.model;
  as_llama.family = "llama";
  const auto other = parameter_table(as_llama);
  try {
    checkpoint::HfModel(exported, as_llama, other).check_fits();
    ADD_FAILURE() << "a folder of another family fits";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("has no tensor 'model.layers.0.mlp.up_proj.weight'"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(MadeUpFamily, IsUnknownToOthers) {
  EXPECT_EQ(family_named("lantern").architecture, "LanternForCausalLM");
  try {
    family_named("lanter");
    ADD_FAILURE() << "an unknown family has been found";
  } catch (const Error& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "model.family 'lanter' is unknown; known: llama, mistral, ministral, ministral3, qwen2, "
        "mimo, "
        "qwen3, olmo2, olmo3, exaone4, smollm3, internlm2, internlm3, seed_oss, phi3, "
        "hunyuan_v1_dense, "
        "ernie4_5, helium, glm, "
        "glm4, granite, granitemoehybrid, cohere, cohere2, arcee, apertus, nemotron, starcoder2, "
        "gemma, gemma2, gemma3_text, mixtral, qwen2_moe, qwen3_moe, "
        "olmoe, glm4_moe, dots1, bailing_moe, bailing_moe_v2, minimax_m2, gpt_oss, deepseek_v2, "
        "deepseek_v3, kimi_k2, glm4_moe_lite, "
        "gpt2, "
        "lantern");
  }
}

}  // namespace
}  // namespace llamesh::test
