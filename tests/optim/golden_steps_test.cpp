#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/causal_lm.hpp"
#include "model/golden.hpp"
#include "optim/optimizer.hpp"
#include "optim/sharded_model.hpp"
#include "sharding/mesh_context_parallel.hpp"
#include "sharding/mesh_expert_parallel.hpp"

// Compares ten steps with clipping against PyTorch and Hugging Face transformers
// (tests/model/golden/make_golden.py), on one rank and on a hybrid mesh.

namespace llamesh::optim {
namespace {

using test::Golden;
using test::MeshSizes;
using test::ShardedModel;

OptimizerOptions options_of(const Golden& golden) {
  const auto& j = golden.adamw();
  OptimizerOptions options{.name = OptimizerName::adamw,
                           .lr = j.at("lr"),
                           .beta1 = j.at("betas").at(0),
                           .beta2 = j.at("betas").at(1),
                           .eps = j.at("eps"),
                           .weight_decay = j.at("weight_decay"),
                           .clip_norm = j.at("clip_norm")};
  const auto muon = golden.muon();
  if (muon.is_null()) return options;
  options.name = OptimizerName::muon;
  options.muon = {.lr = muon.at("lr"), .momentum = muon.at("momentum")};
  return options;
}

/// A sequence, or several, as a batch.
struct Row {
  std::vector<std::int32_t> tokens, targets, starts = {};
  std::int64_t sequences = 1;
  std::int64_t length() const { return std::ssize(tokens) / sequences; }
  model::Batch batch() {
    const auto tensor = [&](std::vector<std::int32_t>& ids) {
      return ids.empty() ? Tensor() : Tensor(ids.data(), DType::i32, {sequences, length()});
    };
    return {tensor(tokens), tensor(targets), tensor(starts)};
  }
};

Row joined(const std::vector<Row>& rows) {
  Row all{.tokens = {}, .targets = {}, .sequences = std::ssize(rows)};
  for (const auto& row : rows) {
    all.tokens.insert(all.tokens.end(), row.tokens.begin(), row.tokens.end());
    all.targets.insert(all.targets.end(), row.targets.begin(), row.targets.end());
  }
  return all;
}

/// Returns this rank's pieces of a sequence that `ranks` divide, after as many tokens as make them
/// equal: in a document of their own, with ignored targets.
Row part_of(Row row, int rank, int ranks) {
  if (ranks == 1) return row;
  const auto own = row.length(), pieces = std::int64_t{2} * ranks;
  const auto whole = (own + pieces - 1) / pieces * pieces;
  row.tokens.resize(static_cast<std::size_t>(whole), 0);
  row.targets.resize(static_cast<std::size_t>(whole), -1);
  if (!row.starts.empty())
    row.starts.resize(static_cast<std::size_t>(whole), static_cast<std::int32_t>(own));
  const auto positions = model::ContextParallel::positions_of(rank, ranks, whole / ranks);
  for (auto* values : {&row.tokens, &row.targets, &row.starts}) {
    if (values->empty()) continue;
    std::vector<std::int32_t> mine;
    for (std::int64_t i = 0; i < positions.tokens; ++i)
      mine.push_back((*values)[static_cast<std::size_t>(positions[i])]);
    *values = mine;
  }
  return row;
}

/// Returns a data rank's micro-batches. A single data rank takes all rows in turn, or together if
/// the loss on routers needs the whole batch. With more,
/// several ranks share a row and each counts part of its targets, so that every rank adds to the
/// gradient.
std::vector<Row> rows_of(const Golden& golden, const comm::ParallelDims& dims, int world_rank) {
  const auto batch = dims.batch_axes(), context = dims.context();
  const int data_rank = dims.rank_in_group(batch, world_rank), data_ranks = dims.group_size(batch);
  std::vector<Row> rows;
  for (std::size_t r = 0; r < golden.tokens().size(); ++r) {
    rows.push_back({golden.tokens()[r], golden.targets()[r]});
    if (!golden.document_starts().empty()) rows.back().starts = golden.document_starts()[r];
    rows.back() = part_of(std::move(rows.back()), dims.rank_in_group(context, world_rank),
                          dims.group_size(context));
  }
  if (data_ranks == 1 && golden.aux_loss() > 0) return {joined(rows)};
  if (data_ranks == 1) return rows;
  const auto rank = static_cast<std::size_t>(data_rank);
  const auto ranks_per_row = static_cast<std::size_t>(data_ranks) / rows.size();
  Row row = rows[rank % rows.size()];
  for (std::size_t i = 0; i < row.targets.size(); ++i)
    if (i % ranks_per_row != rank / rows.size()) row.targets[i] = -1;
  return {row};
}

/// Training from the golden weights, like train::Trainer.
class GoldenRun {
 public:
  GoldenRun(const Golden& golden, MeshSizes mesh)
      : golden_(golden),
        config_(test::config_of(golden.config())),
        options_(options_of(golden)),
        sharded_(config_, mesh, options_, golden.freeze()),
        optimizer_(options_, sharded_.state(), sharded_.mesh()),
        rows_(rows_of(golden, sharded_.layout().dims(), sharded_.state().rank())),
        tensor_(sharding::make_tensor_parallel(sharded_.mesh(), {mesh.residual}, tokens(),
                                               config_.hidden_size, DType::f32)),
        experts_(sharding::make_expert_parallel(sharded_.mesh(), config_)),
        context_(sharding::make_context_parallel(
            sharded_.mesh(),
            sharding::context_shape(
                config_, sharded_.mesh().dims().group_size(sharded_.mesh().dims().tensor()),
                rows_[0].sequences, rows_[0].length(), DType::f32))),
        model_(config_, sharded_.layout().local_table(), rows_[0].sequences, rows_[0].length(), {},
               DType::f32, *tensor_, model::Purpose::train, *experts_,
               config_.num_experts > 0 ? sharding::data_ranks(sharded_.mesh()) : model::DataRanks(),
               *context_) {
    std::int64_t valid = 0;
    for (const auto& row : rows_)
      valid += std::ranges::count_if(row.targets, [](auto target) { return target >= 0; });
    valid_ = test::world().sum(valid) / tensor_->size();  // tensor ranks have the same data
    sharded_.for_each_piece([&](std::size_t unit, const sharding::Piece& piece) {
      const auto values = golden_of("weights/", piece);
      std::ranges::copy(values, weights_of(unit).as<float>() + piece.offset);
    });
    test::world().barrier();  // a node's master shards are gathered in place
  }

  struct Step {
    double loss, norm, aux_loss;
  };
  Step step(std::int64_t step) {
    model_.begin_step(std::ssize(rows_));
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      sharded_.fsdp().begin_micro_batch({static_cast<std::int64_t>(i), std::ssize(rows_)});
      model_.train(sharded_.fsdp(), rows_[i].batch(), 1.0F / static_cast<float>(valid_));
    }
    sharded_.fsdp().finish_gradients();
    model_.end_step();
    const double loss = model_.take_loss();
    const double norm = sharded_.gradient_norm();
    optimizer_.step(options_.lr, norm, step);
    sharded_.fsdp().on_master_weights_loaded();
    return {test::world().sum(loss) / tensor_->size() / static_cast<double>(valid_), norm,
            golden_.aux_loss() > 0 ? model::load_balancing_loss(model_.take_router_sums()) : 0};
  }

  void expect_trained() {
    sharded_.for_each_piece([&](std::size_t unit, const sharding::Piece& piece) {
      const auto expected = golden_of("trained/", piece);
      const float* seen = weights_of(unit).as<float>() + piece.offset;
      for (std::size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(seen[i], expected[i], 1e-4)
            << sharded_.table()[piece.parameter].name << " [" << piece.begin << " + " << i << "]";
    });
    for (std::size_t u = 0; u < sharded_.layout().units().size(); ++u) {
      EXPECT_EQ(sharded_.padding_of(u, sharded_.state().masters().shards[u]), 0.0F) << "unit " << u;
      EXPECT_EQ(sharded_.padding_of(u, sharded_.state().gradients().shards[u]), 0.0F)
          << "unit " << u;
    }
  }

 private:
  Tensor weights_of(std::size_t unit) {
    const auto& state = sharded_.state();
    return (sharded_.layout().units()[unit].frozen ? state.frozen() : state.masters()).shards[unit];
  }
  std::int64_t tokens() const { return std::ssize(rows_[0].tokens); }
  std::vector<float> golden_of(const std::string& group, const sharding::Piece& piece) {
    const auto& parameter = sharded_.table()[piece.parameter];
    auto& parameters = golden_parameters_[group];
    if (parameters.empty())
      parameters = test::parameters_of(golden_, group, config_, sharded_.table());
    const auto& whole = parameters[model::index(piece.parameter)];
    std::vector<float> values(static_cast<std::size_t>(piece.count));
    for_each_run(parameter.shape, sharded_.layout().range(piece, sharded_.state().rank()),
                 [&](std::int64_t begin, std::int64_t at, std::int64_t count) {
                   std::copy_n(whole.begin() + begin, count, values.begin() + at);
                 });
    return values;
  }

  const Golden& golden_;
  std::map<std::string, std::vector<std::vector<float>>> golden_parameters_;  ///< by group
  model::ModelConfig config_;
  OptimizerOptions options_;
  ShardedModel sharded_;
  Optimizer optimizer_;
  std::vector<Row> rows_;
  std::unique_ptr<model::TensorParallel> tensor_;
  std::unique_ptr<model::ExpertParallel> experts_;
  std::unique_ptr<model::ContextParallel> context_;
  model::CausalLM model_;
  std::int64_t valid_ = 0;
};

using Case = std::tuple<const char*, MeshSizes>;
class GoldenSteps : public testing::TestWithParam<Case> {};

TEST_P(GoldenSteps, LossesNormsAndWeightsAreThoseOfTheReference) {
  const auto& [name, mesh] = GetParam();
  if (mesh.ranks() != test::world().size()) GTEST_SKIP() << "a mesh of another number of ranks";
  const Golden golden = test::load_golden(name);
  if (mesh.residual == sharding::ResidualLayout::hidden &&
      model::parameter_table(test::config_of(golden.config())).norm.centers)
    GTEST_SKIP() << "LayerNorm, which needs whole rows of the residual stream";
  const auto losses = golden.step_losses();
  const auto norms = golden.step_grad_norms();
  const auto aux_losses = golden.step_aux_losses();
  ASSERT_EQ(losses.size(), 10U);
  EXPECT_GT(norms.front(), golden.adamw().at("clip_norm").get<double>())
      << "nothing would be clipped";
  GoldenRun run(golden, mesh);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const auto [loss, norm, aux_loss] = run.step(static_cast<std::int64_t>(i) + 1);
    if (!aux_losses.empty()) {
      EXPECT_NEAR(aux_loss, aux_losses[i], 1e-5) << "step " << i + 1;
    }
    EXPECT_NEAR(loss, losses[i], aux_losses.empty() ? 1e-4 : 1e-5) << "step " << i + 1;
    EXPECT_NEAR(norm, norms[i], 1e-4 * norms[i]) << "step " << i + 1;
  }
  run.expect_trained();
}

std::string name_of_case(const testing::TestParamInfo<Case>& c) {
  const MeshSizes mesh = std::get<1>(c.param);
  const char* residuals[] = {"", "_whole", "_hidden"};
  return fmt::format("{}_replicate{}_shard{}{}{}_tensor{}{}", std::get<0>(c.param), mesh.replicate,
                     mesh.shard, mesh.expert > 1 ? fmt::format("_expert{}", mesh.expert) : "",
                     mesh.context > 1 ? fmt::format("_context{}", mesh.context) : "", mesh.tensor,
                     residuals[static_cast<int>(mesh.residual)]);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenSteps,
                         testing::Combine(testing::Values("gqa_8_2", "tied_6_3", "llama3_rope",
                                                          "packed", "tied_4_2"),
                                          testing::Values(MeshSizes{1, 1}, MeshSizes{2, 2},
                                                          MeshSizes{1, 4}, MeshSizes{4, 1})),
                         name_of_case);

// Its authors' code (github.com/KellerJordan/Muon).
INSTANTIATE_TEST_SUITE_P(Muon, GoldenSteps,
                         testing::Combine(testing::Values("muon"),
                                          testing::Values(MeshSizes{1, 1}, MeshSizes{1, 2},
                                                          MeshSizes{2, 2}, MeshSizes{1, 4},
                                                          MeshSizes{4, 1}, MeshSizes{1, 8},
                                                          MeshSizes{2, 4})),
                         name_of_case);

using enum sharding::ResidualLayout;
INSTANTIATE_TEST_SUITE_P(
    TensorParallel, GoldenSteps,
    testing::Combine(testing::Values("gqa_24_12"),
                     testing::Values(MeshSizes{1, 1, 2}, MeshSizes{1, 1, 3}, MeshSizes{1, 1, 4},
                                     MeshSizes{1, 2, 2}, MeshSizes{2, 2, 2},
                                     MeshSizes{1, 1, 3, hidden}, MeshSizes{1, 1, 4, hidden},
                                     MeshSizes{2, 1, 2, hidden}, MeshSizes{2, 2, 2, hidden})),
    name_of_case);
// More ranks along the axis than kv heads, so ranks share heads.
INSTANTIATE_TEST_SUITE_P(SharedKvHeads, GoldenSteps,
                         testing::Values(Case{"llama3_rope", {1, 1, 2}},
                                         Case{"llama3_rope", {1, 2, 2, hidden}},
                                         Case{"llama3_rope", {2, 1, 2}}, Case{"gqa_8_2", {1, 1, 4}},
                                         Case{"gqa_8_2", {1, 1, 4, whole}},
                                         Case{"gqa_8_2", {1, 2, 4}}),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Biases, GoldenSteps,
                         testing::Values(Case{"biases", {1, 1}}, Case{"biases", {2, 2}},
                                         Case{"biases", {1, 1, 2}}, Case{"biases", {1, 2, 2}},
                                         Case{"biases", {1, 1, 4}},
                                         Case{"biases", {1, 1, 4, whole}},
                                         Case{"biases", {2, 1, 2, hidden}},
                                         Case{"biases", {2, 2, 2}}),
                         name_of_case);

// requires_grad=False in PyTorch.
INSTANTIATE_TEST_SUITE_P(
    Frozen, GoldenSteps,
    testing::Combine(testing::Values("frozen", "frozen_tied"),
                     testing::Values(MeshSizes{1, 1}, MeshSizes{2, 2}, MeshSizes{1, 4},
                                     MeshSizes{4, 1}, MeshSizes{1, 1, 2}, MeshSizes{1, 1, 4},
                                     MeshSizes{2, 2, 2, whole}, MeshSizes{1, 2, 2, hidden})),
    name_of_case);

// Families beside Llama: alone, hybrid, with tensor ranks, and with all three axes. 97 tokens do
// not divide among tensor ranks, which then hold the whole residual stream.
INSTANTIATE_TEST_SUITE_P(
    Families, GoldenSteps,
    testing::Combine(testing::Values("qwen2_window", "mistral", "qwen3", "olmo2", "gpt2"),
                     testing::Values(MeshSizes{1, 1}, MeshSizes{2, 2}, MeshSizes{1, 1, 2, whole},
                                     MeshSizes{2, 2, 2, whole})),
    name_of_case);
INSTANTIATE_TEST_SUITE_P(OddFamilies, GoldenSteps,
                         testing::Combine(testing::Values("qwen2", "rope_yarn", "rope_linear",
                                                          "packed_mistral", "packed_gpt2"),
                                          testing::Values(MeshSizes{1, 1}, MeshSizes{2, 2})),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(FamiliesInSequence, GoldenSteps,
                         testing::Combine(testing::Values("qwen3", "olmo2"),
                                          testing::Values(MeshSizes{1, 1, 2}, MeshSizes{2, 2, 2},
                                                          MeshSizes{1, 2, 2, hidden})),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(
    LlamaVariants, GoldenSteps,
    testing::Combine(testing::ValuesIn(test::llama_variants),
                     testing::Values(MeshSizes{1, 1}, MeshSizes{2, 2}, MeshSizes{1, 1, 2},
                                     MeshSizes{1, 1, 2, whole}, MeshSizes{1, 2, 2, hidden},
                                     MeshSizes{.replicate = 1, .shard = 1, .context = 2})),
    name_of_case);
INSTANTIATE_TEST_SUITE_P(Experts, GoldenSteps,
                         testing::Combine(testing::Values("mixtral", "qwen3_moe"),
                                          testing::Values(MeshSizes{1, 1}, MeshSizes{2, 2},
                                                          MeshSizes{1, 4}, MeshSizes{4, 1})),
                         name_of_case);
// Experts divided among ranks, alone and beside the other axes.
INSTANTIATE_TEST_SUITE_P(
    ExpertAxis, GoldenSteps,
    testing::Combine(testing::Values("mixtral_8", "qwen3_moe_8", "qwen2_moe", "glm4_moe",
                                     "gpt_oss"),
                     testing::Values(MeshSizes{1, 1}, MeshSizes{1, 1, 2},
                                     MeshSizes{.replicate = 1, .shard = 1, .expert = 4},
                                     MeshSizes{.replicate = 1, .shard = 2, .expert = 2},
                                     MeshSizes{.replicate = 2, .shard = 1, .expert = 2},
                                     MeshSizes{1, 2, 2, whole, 2}, MeshSizes{2, 1, 2, sequence, 2},
                                     MeshSizes{.replicate = 2, .shard = 2, .expert = 2},
                                     MeshSizes{.replicate = 1, .shard = 1, .expert = 8})),
    name_of_case);
INSTANTIATE_TEST_SUITE_P(BalancedExperts, GoldenSteps,
                         testing::Combine(testing::Values("mixtral_aux", "mixtral_collapsed",
                                                          "qwen3_moe_aux", "qwen3_moe_dense"),
                                          testing::Values(MeshSizes{1, 1}, MeshSizes{1, 2},
                                                          MeshSizes{2, 1}, MeshSizes{2, 2},
                                                          MeshSizes{1, 4}, MeshSizes{4, 1})),
                         name_of_case);
// Sequences divided among ranks. Those of 97, 98 and 85 tokens are not divisible: see part_of().
INSTANTIATE_TEST_SUITE_P(
    ContextAxis, GoldenSteps,
    testing::Combine(testing::Values("gqa_24_12", "llama3_rope", "packed", "packed_mistral",
                                     "mistral", "qwen2_window", "qwen3_switches", "olmo2",
                                     "mixtral", "qwen3_moe", "rope_linear", "gpt2_96"),
                     testing::Values(MeshSizes{.replicate = 1, .shard = 1, .context = 2},
                                     MeshSizes{.replicate = 1, .shard = 1, .context = 3},
                                     MeshSizes{.replicate = 1, .shard = 1, .context = 4})),
    name_of_case);
INSTANTIATE_TEST_SUITE_P(
    ContextBesideOthers, GoldenSteps,
    testing::Values(Case{"gqa_24_12", {.replicate = 1, .shard = 2, .context = 2}},
                    Case{"gqa_24_12", {.replicate = 2, .shard = 1, .context = 2}},
                    Case{"gqa_24_12", {.replicate = 1, .shard = 1, .tensor = 2, .context = 2}},
                    Case{"biases", {.replicate = 1, .shard = 2, .tensor = 2, .context = 2}},
                    Case{"gqa_24_12", {1, 1, 2, hidden, 1, 2}},
                    Case{"llama3_rope", {1, 2, 2, hidden, 1, 2}},
                    Case{"olmo2", {1, 1, 2, whole, 1, 2}}, Case{"gpt2_96", {1, 1, 2, whole, 1, 2}},
                    Case{"mixtral_collapsed", {.replicate = 1, .shard = 1, .context = 2}},
                    Case{"qwen3_moe_aux", {.replicate = 1, .shard = 1, .context = 3}},
                    Case{"qwen3_moe_dense", {.replicate = 1, .shard = 1, .context = 3}},
                    Case{"long_mistral", {.replicate = 1, .shard = 1}},
                    Case{"long_mistral", {.replicate = 1, .shard = 1, .context = 2}},
                    Case{"long_mistral", {.replicate = 1, .shard = 1, .context = 3}},
                    Case{"long_mistral", {.replicate = 1, .shard = 2, .context = 2}}),
    name_of_case);
// What published models leave off, with the sequence divided among tensor ranks.
INSTANTIATE_TEST_SUITE_P(Switches, GoldenSteps,
                         testing::Combine(testing::Values("qwen3_switches", "olmo2_switches",
                                                          "gpt2_switches"),
                                          testing::Values(MeshSizes{1, 1}, MeshSizes{2, 2},
                                                          MeshSizes{1, 1, 2}, MeshSizes{2, 2, 2})),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(SwitchesInColumns, GoldenSteps,
                         testing::Values(Case{"qwen3_switches", {1, 2, 2, hidden}},
                                         Case{"olmo2_switches", {1, 2, 2, hidden}},
                                         Case{"olmo2_switches", {1, 1, 4, whole}}),
                         name_of_case);
// Tensor ranks that share kv heads, and norms over a divided projection.
INSTANTIATE_TEST_SUITE_P(SharedNormedKvHeads, GoldenSteps,
                         testing::Values(Case{"olmo2", {1, 1, 4, whole}},
                                         Case{"olmo2", {1, 2, 4, whole}}),
                         name_of_case);

// Adapters are divided with their weights, and those that are whole have partial gradients.
INSTANTIATE_TEST_SUITE_P(
    Lora, GoldenSteps,
    testing::Combine(testing::Values("lora"),
                     testing::Values(MeshSizes{1, 1}, MeshSizes{2, 2}, MeshSizes{1, 4},
                                     MeshSizes{4, 1}, MeshSizes{1, 1, 2}, MeshSizes{1, 1, 4},
                                     MeshSizes{1, 1, 4, whole}, MeshSizes{1, 2, 2},
                                     MeshSizes{2, 1, 2, hidden}, MeshSizes{1, 2, 4, hidden},
                                     MeshSizes{2, 2, 2})),
    name_of_case);
INSTANTIATE_TEST_SUITE_P(
    LoraFamilies, GoldenSteps,
    testing::Values(Case{"lora_qwen2", {1, 1}}, Case{"lora_qwen2", {2, 2}},
                    Case{"lora_gpt2", {1, 1}}, Case{"lora_gpt2", {1, 2, 2, whole}},
                    Case{"lora_gpt2", {2, 2, 2}}, Case{"lora_glm4", {1, 1}},
                    Case{"lora_glm4", {1, 2, 2, whole}}, Case{"lora_deepseek", {1, 1}},
                    Case{"lora_deepseek", {1, 2, 2, whole}}, Case{"lora_phi3", {1, 1}},
                    Case{"lora_phi3", {1, 2, 2, whole}}, Case{"lora_phi3", {2, 2, 1}},
                    Case{"lora_gpt2_attn", {1, 1}}, Case{"lora_gpt2_attn", {1, 2, 2, whole}}),
    name_of_case);

}  // namespace
}  // namespace llamesh::optim
