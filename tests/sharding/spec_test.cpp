#include <gtest/gtest.h>

#include <regex>

#include "placements.hpp"
#include "sharding/compile_spec.hpp"
#include "sharding/tensor_placements.hpp"
#include "support.hpp"

namespace llamesh::sharding {
namespace {

using Dims = std::vector<std::vector<std::string>>;

const comm::ParallelDims data_only({{"replicate", 2}, {"shard", 2}});
const comm::ParallelDims shards_only({{"replicate", 1}, {"shard", 4}});
const comm::ParallelDims three_axes({{"replicate", 2}, {"shard", 2}, {"tensor", 2}});
const comm::ParallelDims shard_and_tensor({{"replicate", 1}, {"shard", 2}, {"tensor", 2}});
const comm::ParallelDims with_context(
    {{"replicate", 1}, {"shard", 2}, {"context", 2}, {"tensor", 2}});

const Dims sharded{{"shard"}, {}}, columns{{"tensor"}, {"shard"}}, rows{{"shard"}, {"tensor"}};

model::ParameterTable table_of(bool tied = false) {
  auto config = test::even_config();
  config.tie_word_embeddings = tied;
  return model::parameter_table(config);
}

/// Returns a spec whose n-th entry, counted from 1, is line n in "s.yaml".
Spec lines(const std::vector<std::pair<std::string, Dims>>& entries) {
  Spec spec;
  for (const auto& [name, dims] : entries)
    spec.entries.push_back({name, dims, fmt::format("s.yaml:{}", spec.entries.size() + 1)});
  return spec;
}

const Placement& of(const CompiledSpec& compiled, const model::ParameterTable& table,
                    const std::string& name) {
  for (std::size_t i = 0; i < table.parameters.size(); ++i)
    if (table.parameters[i].name == name) return compiled.placements[i];
  throw std::runtime_error("no " + name);
}

std::string error(const std::vector<std::pair<std::string, Dims>>& entries,
                  const comm::ParallelDims& dims = three_axes, bool tied = false) {
  return test::error_of([&] { compile(lines(entries), table_of(tied), dims); });
}

/// Returns the layers' weights split as in Megatron: lines 1 to 7.
std::vector<std::pair<std::string, Dims>> megatron(
    std::vector<std::pair<std::string, Dims>> more = {}) {
  std::vector<std::pair<std::string, Dims>> all;
  for (const char* name :
       {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"})
    all.emplace_back(fmt::format("model.layers.*.{}.weight", name), columns);
  for (const char* name : {"self_attn.o_proj", "mlp.down_proj"})
    all.emplace_back(fmt::format("model.layers.*.{}.weight", name), rows);
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(Spec, OfAStrategyShardsEveryWeightAlongShard) {
  for (const bool tied : {false, true})
    for (const auto& dims : {data_only, shards_only}) {
      const auto table = table_of(tied);
      const auto compiled =
          compile(builtin_spec(table, dims, ResidualLayout::sequence), table, dims);
      EXPECT_EQ(compiled.placements, whole_and_sharded(table, dims));
      EXPECT_EQ(compiled.residual, ResidualLayout::whole);
    }
}

TEST(Spec, OfAStrategyCutsAsMegatronDoes) {
  using enum ResidualLayout;
  for (const bool tied : {false, true})
    for (const auto residual : {sequence, whole, hidden}) {
      const auto table = table_of(tied);
      const auto compiled = compile(builtin_spec(table, three_axes, residual), table, three_axes);
      EXPECT_EQ(compiled.residual, residual);
      EXPECT_EQ(compiled.placements, tensor_parallel_placements(table, three_axes, {residual}));
    }
}

TEST(Spec, IsTrainedWhereItsCutsAreMegatrons) {
  const auto table = table_of();
  const auto check = [&](const Spec& spec) {
    auto [placements, residual] = compile(spec, table, shard_and_tensor);
    auto units = make_units(table, {}, shard_and_tensor, placements);
    check_implemented(ShardLayout(table, std::move(units), shard_and_tensor, placements), residual);
  };
  EXPECT_NO_THROW(check(builtin_spec(table, shard_and_tensor, ResidualLayout::sequence)));
  EXPECT_NO_THROW(check(builtin_spec(table, shard_and_tensor, ResidualLayout::whole)));
  EXPECT_NO_THROW(check(builtin_spec(table, shard_and_tensor, ResidualLayout::hidden)));
  EXPECT_NO_THROW(
      check(lines(megatron({{"model.embed_tokens.weight", rows}, {"lm_head.weight", columns}}))));
  EXPECT_EQ(test::error_of([&] {
              check(lines(megatron({{"lm_head.weight", columns}})));
            }),
            "sharding.spec: model.embed_tokens.weight is not cut as Megatron does; on a mesh with "
            "an axis tensor that is not implemented: write [tensor, shard] for it");
}

TEST(Spec, AxesHaveAliasesAndListsAndAnyDim) {
  const auto table = table_of();
  const auto compiled = compile(lines({{"model.embed_tokens.weight", {{}, {"fsdp"}}},
                                       {"lm_head.weight", {{"fsdp", "data"}, {}}},
                                       {"model.norm.weight", {{"data"}}},
                                       {"model.layers.1.mlp.up_proj.weight", {{"data"}, {"fsdp"}}},
                                       {"model.layers.*[0]", {{"fsdp", "data"}, {}, {}}}}),
                                table, data_only);
  EXPECT_EQ(of(compiled, table, "model.embed_tokens.weight").sharded, data_only.named({"shard"}));
  EXPECT_EQ(of(compiled, table, "lm_head.weight").sharded, data_only.gradient_axes());
  EXPECT_EQ(of(compiled, table, "model.norm.weight").sharded, data_only.named({"replicate"}));
  EXPECT_EQ(of(compiled, table, "model.layers.1.mlp.up_proj.weight").sharded,
            data_only.gradient_axes());
  EXPECT_TRUE(of(compiled, table, "model.layers.0.mlp.up_proj.weight").sharded.none())
      << "the spec does not name it";
}

TEST(Spec, ALayersNumberCountsMoreThanAStar) {
  const auto table = table_of();
  for (const auto& entries : {lines({{"model.layers.*.input_layernorm.weight", {{"shard"}}},
                                     {"model.layers.1.input_layernorm.weight", {{}}}}),
                              lines({{"model.layers.1.input_layernorm.weight", {{}}},
                                     {"model.layers.*.input_layernorm.weight", {{"shard"}}}})}) {
    const auto compiled = compile(entries, table, data_only);
    EXPECT_TRUE(of(compiled, table, "model.layers.0.input_layernorm.weight").sharded.any());
    EXPECT_TRUE(of(compiled, table, "model.layers.1.input_layernorm.weight").sharded.none());
  }
}

// Names and style from torchprime's two-dimensional files.
TEST(Spec, TakesTheNamesOfTorchprimesModuleTree) {
  const auto table = table_of();
  auto entries = megatron({{"model.embed_tokens.weight", {{"fsdp"}, {"tensor"}}},
                           {"model.layers.*.self_attn.shard_o_proj_weight", rows},
                           {"model.layers.*.self_attn.core_attention", {{"fsdp"}, {}, {"tensor"}}},
                           {"model.layers.*.self_attn.q_proj", {{"fsdp"}, {}, {"tensor"}}},
                           {"model.layers.*.mlp", {{"fsdp"}, {}, {"tensor"}}},
                           {"model.layers.*", {{"fsdp"}, {}, {"tensor"}}}});
  entries[5].first = "model.layers.*.self_attn.o_proj_weight";
  entries[6].first = "model.layers.*.decoder_layer.mlp.down_proj.weight";
  const auto compiled = compile(lines(entries), table, shard_and_tensor);
  EXPECT_EQ(compiled.residual, ResidualLayout::hidden);
  const auto tensor = shard_and_tensor.named({"tensor"});
  for (const char* name : {"model.layers.1.self_attn.o_proj.weight",
                           "model.layers.0.mlp.down_proj.weight", "model.embed_tokens.weight"})
    EXPECT_EQ(of(compiled, table, name).split, (std::vector<comm::AxisSet>{{}, tensor})) << name;
}

// torchprime names `context` where attention needs it, on the queries' sequence dim, and leaves the
// other outputs to XLA.
TEST(Spec, TakesTorchprimesThreeDimensionalFile) {
  const auto table = table_of();
  const Dims data_and_tensor{{"data", "fsdp"}, {}, {"tensor"}};
  auto entries =
      megatron({{"model.embed_tokens.weight", {{"fsdp"}, {"tensor"}}},
                {"lm_head.weight", {{"tensor"}, {"fsdp"}}},
                {"model.layers.*.input_layernorm.weight", {{"fsdp"}}},
                {"model.layers.*.post_attention_layernorm.weight", {{"fsdp"}}},
                {"model.norm.weight", {{"fsdp"}}},
                {"model.layers.*.self_attn.q_proj", {{"data", "fsdp"}, {"context"}, {"tensor"}}}});
  for (const char* name :
       {".self_attn.k_proj", ".self_attn.v_proj", ".self_attn.o_proj", ".input_layernorm",
        ".post_attention_layernorm", ".mlp.up_proj", ".mlp.down_proj", ".mlp.gate_proj", ""})
    entries.emplace_back(fmt::format("model.layers.*{}", name), data_and_tensor);
  const auto compiled = compile(lines(entries), table, with_context);
  EXPECT_EQ(compiled.residual, ResidualLayout::hidden);
  EXPECT_EQ(of(compiled, table, "model.norm.weight").sharded, with_context.named({"shard"}));
}

TEST(Spec, ContextDividesSequencesAndShardsWeights) {
  const auto table = table_of();
  const Dims rows_of_both{{"shard"}, {"context", "tensor"}, {}};
  const auto compiled = compile(lines(megatron({{"model.norm.weight", {{"shard", "context"}}},
                                                {"model.layers.*", rows_of_both},
                                                {"model.norm", rows_of_both},
                                                {"lm_head", {{"shard"}, {"context"}, {}}}})),
                                table, with_context);
  EXPECT_EQ(compiled.residual, ResidualLayout::sequence);
  EXPECT_EQ(of(compiled, table, "model.norm.weight").sharded,
            with_context.named({"shard", "context"}));
  const auto by_context = compile(
      lines(megatron({{"model.layers.*", {{"shard"}, {"context"}, {}}}})), table, with_context);
  EXPECT_EQ(by_context.residual, ResidualLayout::whole);
}

TEST(SpecErrors, ContextOnOtherDimsThanTheSequence) {
  EXPECT_EQ(error({{"model.layers.*", {{"shard"}, {}, {"context"}}}}, with_context),
            "s.yaml:1: model.layers.*: [shard, null, context] names 'context' on the last dim, but "
            "it divides sequences; write [context, null] for the last two dims");
  EXPECT_EQ(error({{"model.layers.*", {{"shard", "context"}, {}, {}}}}, with_context),
            "s.yaml:1: model.layers.*: [[shard, context], null, null]: on the mesh replicate=1 x "
            "shard=2 x context=2 x tensor=2 the first dim, the batch, is divided along shard, and "
            "no other dim is; write [shard, null, null]");
  EXPECT_NE(error({{"model.layers.*", {{"shard"}, {"contxt"}, {}}}}, with_context)
                .find("did you mean 'context'?"),
            std::string::npos);
}

TEST(Spec, TheResidualStreamIsAsOutputsSayOrTheEmbeddingOrElseTheOption) {
  const auto table = table_of();
  const auto residual = [&](std::vector<std::pair<std::string, Dims>> more) {
    return compile(lines(megatron(std::move(more))), table, shard_and_tensor,
                   ResidualLayout::sequence)
        .residual;
  };
  EXPECT_EQ(residual({}), ResidualLayout::sequence);
  EXPECT_EQ(residual({{"model.embed_tokens.weight", rows}}), ResidualLayout::hidden);
  EXPECT_EQ(residual({{"model.layers.*", {{"shard"}, {}, {}}}}), ResidualLayout::whole);
  EXPECT_EQ(residual({{"model.norm", {{"shard"}, {"tensor"}, {}}}}), ResidualLayout::sequence);
  EXPECT_EQ(compile(lines({{"lm_head.weight", sharded}}), table, shard_and_tensor).residual,
            ResidualLayout::whole);
}

TEST(SpecErrors, UnknownNamesHaveTheNearest) {
  EXPECT_EQ(error({{"model.layers.*.self_attn.q_prj.weight", sharded}}),
            "s.yaml:1: the model has no weight or module 'model.layers.*.self_attn.q_prj.weight'; "
            "did you mean 'model.layers.*.self_attn.q_proj.weight'?");
  EXPECT_EQ(error({{"model.layers.7a.mlp", sharded}}).substr(0, 60),
            "s.yaml:1: the model has no weight or module 'model.layers.7a");
  EXPECT_EQ(error({{"model.layers.*.self_attn.o_projweight", sharded}}),
            "s.yaml:1: the model has no weight or module 'model.layers.*.self_attn.o_projweight'; "
            "did you mean 'model.layers.*.self_attn.o_proj.weight'?");
  EXPECT_EQ(error({{"model.layers.*.self_attn.shard_o_prj_weight", sharded}}),
            "s.yaml:1: the model has no weight or module "
            "'model.layers.*.self_attn.shard_o_prj_weight'; did you mean "
            "'model.layers.*.self_attn.shard_o_proj_weight'?");
  EXPECT_EQ(error({{"transformer.wte", sharded}}),
            "s.yaml:1: the model has no weight or module 'transformer.wte'");
  EXPECT_EQ(error({{"model.layers.2.mlp.up_proj.weight", sharded}}),
            "s.yaml:1: model.layers.2.mlp.up_proj.weight: the model has layers 0 to 1");
}

/// As of an empty file, or of one that is not UTF-8.
TEST(SpecErrors, ASpecMustNameAWeight) {
  const std::string what = "sharding.spec does not name any of the model's 21 weights";
  EXPECT_EQ(error({}).find(what), 0U);
  EXPECT_EQ(error({{"model.layers.*", {{"replicate", "shard"}, {}, {}}}}).find(what), 0U);
}

TEST(SpecErrors, AxesThatTheMeshLacks) {
  const std::string name = "s.yaml:1: model.norm.weight: ";
  EXPECT_EQ(error({{"model.norm.weight", {{"shrad"}}}}),
            name + "unknown axis 'shrad'; did you mean 'shard'?");
  EXPECT_EQ(error({{"model.norm.weight", {{"context"}}}}),
            name +
                "the mesh replicate=2 x shard=2 x tensor=2 has no axis 'context'; give it 2 or "
                "more ranks in mesh.axes.context, or write null");
  for (const auto& dims :
       {data_only, comm::ParallelDims({{"replicate", 2}, {"shard", 2}, {"tensor", 1}})})
    EXPECT_EQ(error({{"model.layers.*.mlp.up_proj.weight", columns}}, dims),
              "s.yaml:1: model.layers.*.mlp.up_proj.weight: the mesh " + comm::to_string(dims) +
                  " has no axis 'tensor'; give it 2 or more ranks in mesh.axes.tensor, or write "
                  "null");
}

TEST(SpecErrors, DimsThatAreNot) {
  EXPECT_EQ(error({{"model.norm.weight", sharded}}),
            "s.yaml:1: model.norm.weight: [shard, null] has 2 dims, but a vector has 1; the weight "
            "is 12");
  EXPECT_EQ(error({{"lm_head.weight", {{"shard"}}}}),
            "s.yaml:1: lm_head.weight: [shard] has 1 dims, but a matrix has 2; the weight is 38 x "
            "12");
  EXPECT_EQ(
      error({{"model.layers.*", sharded}}),
      "s.yaml:1: model.layers.*: [shard, null] has 2 dims, but a module's output has 3: batch, "
      "sequence, hidden");
  EXPECT_EQ(error({{"lm_head.weight", {{"shard"}, {"fsdp"}}}}),
            "s.yaml:1: lm_head.weight: [shard, fsdp] names an axis on two dims; it can divide only "
            "one");
  EXPECT_EQ(error({{"lm_head.weight", {{"shard", "fsdp"}, {}}}}),
            "s.yaml:1: lm_head.weight: dim 0 names 'fsdp' twice");
}

TEST(SpecErrors, TheSameThingTwice) {
  EXPECT_EQ(error({{"model.layers.*", {{"replicate", "shard"}, {}, {}}},
                   {"model.layers.*[0]", {{"replicate", "shard"}, {}, {}}}}),
            "s.yaml:2: model.layers.*[0] is also given as model.layers.* at s.yaml:1; keep one of "
            "them");
  EXPECT_EQ(error({{"model.layers.*.self_attn.o_proj.weight", sharded},
                   {"model.layers.*.self_attn.o_proj_weight", {{}, {}}}}),
            "s.yaml:2: model.layers.*.self_attn.o_proj_weight is [null, null], but "
            "model.layers.*.self_attn.o_proj.weight at s.yaml:1, which is the same, is [shard, "
            "null]");
  EXPECT_EQ(error({{"model.embed_tokens.weight", sharded}, {"lm_head.weight", {{}, {}}}}, data_only,
                  /*tied=*/true),
            "s.yaml:2: lm_head.weight is [null, null], but model.embed_tokens.weight at s.yaml:1, "
            "which is the same tied weight, is [shard, null]");
  EXPECT_EQ(error({{"model.layers.*[1]", {{"replicate", "shard"}, {}, {}}}}),
            "s.yaml:1: model.layers.*[1]: there is one output, model.layers.*[0]");
  EXPECT_EQ(error({{"model.norm.weight[0]", {{"shard"}}}}),
            "s.yaml:1: model.norm.weight[0]: a weight has no elements; write model.norm.weight");
  EXPECT_NE(error({{"model.layers.*[a]", sharded}}).find("brackets at the end"), std::string::npos);
}

TEST(SpecErrors, CutsThatMegatronHasNot) {
  EXPECT_EQ(error({{"model.layers.*.mlp.down_proj.weight", columns}}),
            "s.yaml:1: model.layers.*.mlp.down_proj.weight: dim 0 cannot be cut along 'tensor'; "
            "write [shard, tensor]");
  EXPECT_EQ(error({{"model.layers.*.mlp.up_proj.weight", rows}}),
            "s.yaml:1: model.layers.*.mlp.up_proj.weight: dim 1 cannot be cut along 'tensor'; "
            "write [tensor, shard]");
  EXPECT_EQ(error({{"model.norm.weight", {{"tensor"}}}}),
            "s.yaml:1: model.norm.weight: dim 0 cannot be cut along 'tensor'; a norm's weight is "
            "whole along it: [shard]");
  EXPECT_EQ(error({{"model.embed_tokens.weight", rows}}, three_axes, /*tied=*/true),
            "s.yaml:1: model.embed_tokens.weight: dim 1 cannot be cut along 'tensor'; a tied "
            "embedding is cut as [tensor, shard]");
}

TEST(SpecErrors, CutsThatContradictEachOtherHaveBothLines) {
  auto entries = megatron();
  entries[5].second = sharded;
  EXPECT_EQ(error(entries),
            "s.yaml:1: model.layers.*.self_attn.q_proj.weight: it is cut along 'tensor', but "
            "model.layers.0.self_attn.o_proj.weight (s.yaml:6) is not; cut q_proj, k_proj and "
            "v_proj as [tensor, shard] and o_proj as [shard, tensor], or none of them");
  EXPECT_EQ(
      error({{"model.layers.*.mlp.down_proj.weight", rows}}),
      "s.yaml:1: model.layers.*.mlp.down_proj.weight: it is cut along 'tensor', but "
      "model.layers.0.mlp.gate_proj.weight (the spec does not name it) is not; cut gate_proj and "
      "up_proj as [tensor, shard] and down_proj as [shard, tensor], or none of them");
}

TEST(SpecErrors, OutputsThatTheirWeightsDoNotMake) {
  const Dims whole{{"replicate", "shard"}, {}, {}},
      by_hidden{{"replicate", "shard"}, {}, {"tensor"}};
  const Dims by_sequence{{"replicate", "shard"}, {"tensor"}, {}};
  EXPECT_EQ(error(megatron({{"model.layers.*.mlp.up_proj", whole}})),
            "s.yaml:8: model.layers.*.mlp.up_proj: [[replicate, shard], null, null] is not cut "
            "along 'tensor', but model.layers.0.mlp.up_proj.weight (s.yaml:5) is; write "
            "[[replicate, shard], null, tensor] here, or null there");
  EXPECT_EQ(
      error({{"lm_head", by_hidden}}),
      "s.yaml:1: lm_head: [[replicate, shard], null, tensor] is cut along 'tensor', but "
      "lm_head.weight (the spec does not name it) is not; write [[replicate, shard], null, null] "
      "here, or 'tensor' on the first dim there");
  EXPECT_NE(error(megatron({{"model.layers.*.self_attn.core_attention", by_sequence}}))
                .find("the rows of all ranks"),
            std::string::npos);
  EXPECT_EQ(error(megatron({{"model.layers.*", by_hidden}, {"model.norm", by_sequence}})),
            "s.yaml:9: model.norm: [[replicate, shard], tensor, null] contradicts [[replicate, "
            "shard], null, tensor] of model.layers.* (s.yaml:8): the residual stream is laid out "
            "in one way; write the same for both");
  EXPECT_NE(error({{"model.layers.*", by_hidden}}).find("is not cut along it"), std::string::npos);
  EXPECT_NE(error(megatron({{"model.embed_tokens.weight", rows}, {"model.layers.*", whole}}))
                .find("s.yaml:8: model.embed_tokens.weight: this contradicts"),
            std::string::npos);
  EXPECT_NE(error({{"model.embed_tokens.weight", rows}}).find("not every layer is cut"),
            std::string::npos);
}

TEST(SpecErrors, TheBatchIsDividedOverAllDataAxes) {
  EXPECT_EQ(error({{"model.layers.*", {{"fsdp"}, {}, {}}}}, data_only),
            "s.yaml:1: model.layers.*: [fsdp, null, null]: on the mesh replicate=2 x shard=2 the "
            "first dim, the batch, is divided along replicate and shard, and no other dim is; "
            "write [[replicate, shard], null, null]");
  EXPECT_NO_THROW(
      compile(lines({{"lm_head.weight", sharded}, {"model.layers.*", {{"fsdp"}, {}, {}}}}),
              table_of(), shards_only));
  for (const auto& dims : {Dims{{}, {}, {}}, Dims{{"shard"}, {"replicate"}, {}},
                           Dims{{"replicate", "shard", "tensor"}, {}, {}}})
    EXPECT_NE(error({{"lm_head", dims}}).find("the first dim, the batch, is divided along"),
              std::string::npos);
}

TEST(DescribeSpec, ShowsShapesAxesAndBytes) {
  const auto table = table_of();
  auto entries = megatron({{"model.embed_tokens.weight", sharded}});
  const auto compiled = compile(lines(entries), table, shard_and_tensor);
  const ShardLayout layout(table, make_units(table, {}, shard_and_tensor, compiled.placements),
                           shard_and_tensor, compiled.placements);
  const auto table_text = describe_spec(layout, "of a test", compiled.residual, Layers::folded);
  const auto text = std::regex_replace(table_text, std::regex(" +"), " ");
  for (const std::string line :
       {"spec of a test, mesh replicate=1 x shard=2 x tensor=2, residual stream divided by rows "
        "(sequence)",
        "model.embed_tokens.weight 38 x 12 38 x 12 flat over shard 912",
        "model.layers.0..1.mlp.down_proj.weight 12 x 20 12 x 10 [null, tensor], flat over shard 2 "
        "x 240",
        "model.norm.weight 12 12 whole 48",
        "the spec leaves 6 of 21 weights whole on every rank, 2064 bytes of them in fp32 and 8256 "
        "with gradients and moments: model.layers.0.input_layernorm.weight, "
        "model.layers.0.post_attention_layernorm.weight, model.layers.1.input_layernorm.weight and "
        "3 more"})
    EXPECT_NE(text.find(line + '\n'), std::string::npos) << line << "\nis not in\n" << table_text;
  EXPECT_EQ(describe_whole(ShardLayout(table, make_units(table, {}), shards_only)), "");
}

// --- a mixture of experts

const comm::ParallelDims experts_only({{"replicate", 1}, {"shard", 2}, {"expert", 2}});
const comm::ParallelDims experts_and_tensor(
    {{"replicate", 2}, {"shard", 2}, {"expert", 2}, {"tensor", 2}});

model::ParameterTable experts_table(const std::string& family = "mixtral") {
  auto config = test::even_config();
  config.family = family;
  config.num_experts = 4;
  config.num_experts_per_tok = 2;
  if (family == "qwen3_moe") config.moe_intermediate_size = 6;
  return model::parameter_table(config.resolved());
}

std::string experts_error(const std::vector<std::pair<std::string, Dims>>& entries,
                          const comm::ParallelDims& dims = experts_and_tensor) {
  return test::error_of([&] { compile(lines(entries), experts_table(), dims); });
}

const std::string moe = "model.layers.*.block_sparse_moe.";

/// Returns a layer's experts split along both axes, and its attention along `tensor`: lines 1 to 7.
std::vector<std::pair<std::string, Dims>> expert_lines(
    std::vector<std::pair<std::string, Dims>> more = {}) {
  std::vector<std::pair<std::string, Dims>> all;
  for (const char* name : {"w1", "w3"})
    all.emplace_back(moe + "experts." + name, Dims{{"expert"}, {"tensor"}, {"fsdp"}});
  all.emplace_back(moe + "experts.w2", Dims{{"expert"}, {"fsdp"}, {"tensor"}});
  for (const char* name : {"q_proj", "k_proj", "v_proj"})
    all.emplace_back(fmt::format("model.layers.*.self_attn.{}.weight", name), columns);
  all.emplace_back("model.layers.*.self_attn.o_proj.weight", rows);
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(ExpertSpec, OfAStrategySplitsExpertsAndShardsTheRestAlongTheirAxisToo) {
  using enum ResidualLayout;
  const comm::ParallelDims copies({{"replicate", 2}, {"shard", 1}, {"expert", 2}, {"tensor", 2}});
  const comm::ParallelDims one_expert_rank({{"replicate", 2}, {"shard", 2}, {"tensor", 2}});
  for (const auto* family : {"mixtral", "qwen3_moe"})
    for (const auto& [dims, strategy] : {std::pair(data_only, Strategy::hybrid_shard),
                                         {one_expert_rank, Strategy::hybrid_shard},
                                         {experts_only, Strategy::full_shard},
                                         {experts_and_tensor, Strategy::hybrid_shard},
                                         {copies, Strategy::no_shard}})
      for (const auto residual : {sequence, whole, hidden}) {
        const auto table = experts_table(family);
        const auto compiled =
            compile(builtin_spec(table, dims, residual, strategy), table, dims, residual);
        EXPECT_TRUE(compiled.placements ==
                    tensor_parallel_placements(table, dims, {residual}, strategy))
            << family << " on " << comm::to_string(dims);
      }
}

/// Names and axes as in all versions of torchprime's files for Mixtral.
TEST(ExpertSpec, TakesTorchprimesNamesOfExperts) {
  const auto table = experts_table();
  const auto shard = shards_only.named({"shard"});
  for (const std::string stack : {"experts.w1", "experts.*.w1.weight"})
    for (const Dims& outputs : {Dims{{"fsdp", "data"}, {}, {}}, Dims{{"fsdp"}, {}, {}}}) {
      const auto compiled = compile(lines({{moe + "gate.weight", {{}, {"fsdp"}}},
                                           {moe + stack, {{}, {}, {"fsdp"}}},
                                           {"model.layers.*[0]", outputs},
                                           {"lm_head", outputs}}),
                                    table, shards_only);
      for (const char* name : {"experts.w1", "gate.weight"}) {
        const auto& placement =
            of(compiled, table, "model.layers.1.block_sparse_moe." + std::string(name));
        EXPECT_EQ(placement.sharded, shard) << name;
        EXPECT_TRUE(placement.split_axes().none()) << name;
      }
      EXPECT_TRUE(of(compiled, table, "model.layers.1.block_sparse_moe.experts.w2").sharded.none());
    }
}

TEST(ExpertSpec, NamesTheMatrixOfEveryExpertWithItsOwnDims) {
  const auto table = experts_table("qwen3_moe");
  const auto compiled = compile(
      lines({{"model.layers.*.mlp.experts.*.gate_proj.weight", columns},
             {"model.layers.*.mlp.experts.*.up_proj.weight", columns},
             {"model.layers.*.mlp.experts.*.down_proj.weight", rows},
             {"model.layers.1.mlp.experts.*.down_proj.weight", {{}, {"fsdp"}, {"tensor"}}}}),
      table, shard_and_tensor);
  const auto tensor = shard_and_tensor.tensor();
  EXPECT_EQ(of(compiled, table, "model.layers.1.mlp.experts.gate_proj").split,
            (std::vector<comm::AxisSet>{{}, tensor, {}}));
  EXPECT_EQ(of(compiled, table, "model.layers.1.mlp.experts.down_proj").split,
            (std::vector<comm::AxisSet>{{}, {}, tensor}));
}

TEST(ExpertSpec, ExpertOnAnyDimOfAnotherWeightShardsIt) {
  const auto table = experts_table();
  const auto compiled = compile(lines({{"lm_head.weight", {{"fsdp"}, {"expert"}}},
                                       {moe + "gate.weight", {{"expert"}, {}}},
                                       {moe + "experts.w1", {{"expert", "fsdp"}, {}, {}}},
                                       {moe + "experts.w2", {{"expert"}, {}, {}}},
                                       {moe + "experts.w3", {{"expert"}, {}, {}}},
                                       {moe + "experts", {{"fsdp", "expert"}, {}, {}}}}),
                                table, experts_only);
  EXPECT_EQ(of(compiled, table, "lm_head.weight").sharded,
            experts_only.gradient_axes() & ~experts_only.named({"replicate"}));
  const auto& w1 = of(compiled, table, "model.layers.0.block_sparse_moe.experts.w1");
  EXPECT_EQ(w1.sharded, experts_only.named({"shard"}));
  EXPECT_EQ(w1.split.front(), experts_only.named({"expert"}));
}

TEST(ExpertSpecErrors, ExpertsAndTheirAxisElsewhere) {
  EXPECT_EQ(experts_error({{moe + "experts.w1", {{}, {"expert"}, {"shard"}}}}),
            "s.yaml:1: model.layers.*.block_sparse_moe.experts.w1: dim 1 cannot be cut along "
            "'expert', which divides the 4 experts of dim 0; write [expert, tensor, shard]");
  EXPECT_EQ(experts_error({{moe + "experts.w2", {{}, {"expert"}, {"shard"}}}}, experts_only),
            "s.yaml:1: model.layers.*.block_sparse_moe.experts.w2: dim 1 cannot be cut along "
            "'expert', which divides the 4 experts of dim 0; write [expert, shard, null]");
  EXPECT_EQ(experts_error({{moe + "experts.w1", {{"expert"}, {}, {"shard"}}}}, data_only),
            "s.yaml:1: model.layers.*.block_sparse_moe.experts.w1: the mesh replicate=2 x shard=2 "
            "has no axis 'expert'; give it 2 or more ranks in mesh.axes.expert, or write null");
  EXPECT_EQ(experts_error({{moe + "experts.w1", sharded}}),
            "s.yaml:1: model.layers.*.block_sparse_moe.experts.w1: [shard, null] has 2 dims, but a "
            "stack of matrices has 3; the weight is 4 x 20 x 12");
  EXPECT_EQ(experts_error({{moe + "gate.weight", {{"expert", "shard", "expert"}, {}}}}),
            "s.yaml:1: model.layers.*.block_sparse_moe.gate.weight: dim 0 names 'expert' twice");
  EXPECT_EQ(experts_error({{moe + "experts.0.w1.weight", sharded}}).substr(0, 41),
            "s.yaml:1: the model has no weight or modu");
}

TEST(ExpertSpecErrors, CutsAlongTensorThatExpertsHaveNot) {
  EXPECT_EQ(experts_error({{moe + "experts.w1", {{"expert"}, {"shard"}, {"tensor"}}}}),
            "s.yaml:1: model.layers.*.block_sparse_moe.experts.w1: dim 2 cannot be cut along "
            "'tensor'; write [expert, tensor, shard]");
  EXPECT_EQ(experts_error({{moe + "experts.w2", {{"tensor"}, {}, {"shard"}}}}, shard_and_tensor),
            "s.yaml:1: model.layers.*.block_sparse_moe.experts.w2: dim 0 cannot be cut along "
            "'tensor'; write [null, shard, tensor]");
  EXPECT_EQ(experts_error({{moe + "gate.weight", columns}}),
            "s.yaml:1: model.layers.*.block_sparse_moe.gate.weight: dim 0 cannot be cut along "
            "'tensor'; a router's weight is whole along it: [shard, null]");
}

TEST(ExpertSpecErrors, TheStacksOfALayerAreCutTogether) {
  auto entries = expert_lines();
  entries[2].second = {{"expert"}, {"fsdp"}, {}};
  EXPECT_EQ(experts_error(entries),
            "s.yaml:1: model.layers.*.block_sparse_moe.experts.w1: it is cut along 'tensor', but "
            "model.layers.0.block_sparse_moe.experts.w2 (s.yaml:3) is not; cut w1 and w3 as "
            "[expert, tensor, shard] and w2 as [expert, shard, tensor], or none of them");
  entries[2].second = {{}, {"fsdp"}, {"tensor"}};
  EXPECT_EQ(experts_error(entries),
            "s.yaml:1: model.layers.*.block_sparse_moe.experts.w1: it is cut along 'expert', but "
            "model.layers.0.block_sparse_moe.experts.w2 (s.yaml:3) is not; write 'expert' on dim 0 "
            "of w1, w3 and w2");
}

TEST(ExpertSpecErrors, OutputsOfExpertsAndRouters) {
  const Dims batch{{"replicate", "shard", "expert"}, {}, {}};
  const Dims by_rows{{"replicate", "shard", "expert"}, {"tensor"}, {}};
  const auto table = experts_table();
  const auto residual = [&](const Dims& dims) {
    return compile(lines(expert_lines({{moe + "experts", dims},
                                       {"model.layers.*.block_sparse_moe", dims},
                                       {moe + "gate", batch}})),
                   table, experts_and_tensor)
        .residual;
  };
  EXPECT_EQ(residual(batch), ResidualLayout::whole);
  EXPECT_EQ(residual(by_rows), ResidualLayout::sequence);
  EXPECT_EQ(
      experts_error(expert_lines({{"model.layers.*", {{"replicate", "shard"}, {}, {}}}})),
      "s.yaml:8: model.layers.*: [[replicate, shard], null, null]: on the mesh replicate=2 x "
      "shard=2 x expert=2 x tensor=2 the first dim, the batch, is divided along replicate, shard "
      "and expert, and no other dim is; write [[replicate, shard, expert], null, null]");
  EXPECT_NE(experts_error(expert_lines({{moe + "gate", by_rows}})).find("the rows of all ranks"),
            std::string::npos);
  EXPECT_EQ(
      experts_error(
          expert_lines({{moe + "gate", {{"replicate", "shard", "expert"}, {}, {"tensor"}}}})),
      "s.yaml:8: model.layers.*.block_sparse_moe.gate: [[replicate, shard, expert], null, tensor] "
      "is "
      "cut along 'tensor', but a router's output is whole along it; write [[replicate, shard, "
      "expert], null, null]");
  EXPECT_NE(experts_error(expert_lines({{moe + "experts", by_rows},
                                        {"model.layers.*.block_sparse_moe", batch}}))
                .find("the residual stream is laid out in one way"),
            std::string::npos);
}

TEST(ExpertSpecErrors, ExpertsThatAreWholeAlongTheirAxisAreNotTrained) {
  const auto table = experts_table();
  const comm::ParallelDims dims({{"shard", 2}, {"expert", 2}});
  auto placements = tensor_parallel_placements(table, dims, {});
  for (auto& placement : placements) placement.split.front() &= ~dims.named({"expert"});
  const ShardLayout layout(table, make_units(table, {}, dims, placements), dims, placements);
  EXPECT_EQ(test::error_of([&] { check_implemented(layout, ResidualLayout::whole); }),
            "sharding.spec: model.layers.0.block_sparse_moe.experts.w1 is whole along the axis "
            "expert, on which each rank must have its own experts: write [expert, shard, null] for "
            "it");
}

TEST(ExpertSpec, IsDescribed) {
  const auto table = experts_table();
  const auto compiled = compile(builtin_spec(table, experts_and_tensor, ResidualLayout::sequence),
                                table, experts_and_tensor);
  const ShardLayout layout(table, make_units(table, {}, experts_and_tensor, compiled.placements),
                           experts_and_tensor, compiled.placements);
  const auto text = std::regex_replace(
      describe_spec(layout, "of a test", compiled.residual, Layers::folded), std::regex(" +"), " ");
  for (const std::string line :
       {"model.layers.0..1.block_sparse_moe.experts.w2 4 x 12 x 20 2 x 12 x 10 [expert, null, "
        "tensor], flat over shard 2 x 480",
        "model.layers.0..1.block_sparse_moe.gate.weight 4 x 12 4 x 12 flat over shard x expert 2 x "
        "48"})
    EXPECT_NE(text.find(line + '\n'), std::string::npos) << line << "\nis not in\n" << text;
}

}  // namespace
}  // namespace llamesh::sharding
