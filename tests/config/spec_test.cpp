#include <gtest/gtest.h>

#include <filesystem>

#include "config/include.hpp"
#include "config/inputs.hpp"
#include "sharding/compile_spec.hpp"
#include "source_file.hpp"
#include "support.hpp"
#include "temporary_folder.hpp"

namespace llamesh::config {
namespace {

using Dims = std::vector<std::vector<std::string>>;

const std::string some_data = "data: {train: a.txt}\n";

sharding::Spec read(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_inputs(some_data + text, "f.yaml", overrides).sharding.spec.value();
}
std::string error_of_spec(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return test::error_of([&] { parse_inputs(some_data + text, "f.yaml", overrides); });
}
/// Formats "NAME: [DIMS] (WHERE)", one line per entry.
std::string text_of(const sharding::Spec& spec) {
  std::string text;
  for (const auto& entry : spec.entries)
    text += fmt::format("{}: {} ({})\n", entry.name, sharding::to_string(entry.dims), entry.where);
  return text;
}

TEST(SpecInput, IsAbsentUnlessItIsGiven) {
  EXPECT_FALSE(parse_inputs(some_data, "f.yaml").sharding.spec);
  EXPECT_FALSE(parse_inputs(some_data + "sharding: {spec: null}\n", "f.yaml").sharding.spec);
  EXPECT_TRUE(read("sharding: {spec: {}}\n").entries.empty());
}

TEST(SpecInput, AMapIsReadWithItsLines) {
  EXPECT_EQ(text_of(read("sharding:\n"
                         "  spec:\n"
                         "    model.norm.weight: ['fsdp']\n"
                         "    'lm_head.weight': [[tensor, \"fsdp\"], ~]\n"
                         "    model.layers.*[0]: [[fsdp, data], null, []]\n"
                         "    model.layers.*.mlp: {up_proj.weight: [shard, null],\n"
                         "      down_proj: {weight: [null, shard]}}\n")),
            "model.norm.weight: [fsdp] (f.yaml:4)\n"
            "lm_head.weight: [[tensor, fsdp], null] (f.yaml:5)\n"
            "model.layers.*[0]: [[fsdp, data], null, null] (f.yaml:6)\n"
            "model.layers.*.mlp.up_proj.weight: [shard, null] (f.yaml:7)\n"
            "model.layers.*.mlp.down_proj.weight: [null, shard] (f.yaml:8)\n");
}

TEST(SpecInput, AFileLiesBesideTheInputsOrWhereTheProgramStarts) {
  const test::TemporaryFolder folder;
  folder.write("s.yaml", "# weights\nmodel.norm.weight: [fsdp]\n");
  const auto inputs = folder.write("in.yaml", some_data + "sharding: {spec: s.yaml}\n");
  EXPECT_EQ(text_of(*load_inputs(inputs).sharding.spec),
            "model.norm.weight: [fsdp] (" + folder.path("s.yaml") + ":2)\n");
  EXPECT_EQ(text_of(read("", {"sharding.spec=" + folder.path("s.yaml")})),
            "model.norm.weight: [fsdp] (" + folder.path("s.yaml") + ":2)\n");
  EXPECT_EQ(error_of_spec("", {"sharding.spec=no-such.yaml"}),
            "command line: sharding.spec: 'no-such.yaml' is not a file; give a YAML file or a map "
            "of names");
  EXPECT_EQ(error_of_spec("", {"sharding.spec=" + folder.path().string()}),
            "command line: sharding.spec: '" + folder.path().string() +
                "' is not a file; give a YAML file or a map of names");
}

// torchprime's first files were groups of model options.
TEST(SpecInput, OlderFilesHaveItInAGroup) {
  const test::TemporaryFolder folder;
  const auto file = folder.write("s.yaml",
                                 "activation_checkpoint_layers:\n - ADecoderLayer\n"
                                 "optimization_barrier_layers:\n - ADecoderLayer\n"
                                 "sharding:\n  # Weights\n  model.norm.weight: [fsdp]\n");
  EXPECT_EQ(text_of(read("", {"sharding.spec=" + file})),
            "model.norm.weight: [fsdp] (" + file + ":7)\n");
  const auto mixed = folder.write("m.yaml", "sharding: {}\nlm_head.weight: [fsdp, null]\n");
  EXPECT_EQ(error_of_spec("", {"sharding.spec=" + mixed}),
            mixed + ":2: 'lm_head.weight' is outside the group sharding; move it into that group");
}

TEST(SpecInput, OverridesReplaceAddAndTakeAway) {
  const std::string text = "sharding: {spec: {model.norm.weight: [fsdp], lm_head: [null]}}\n";
  EXPECT_EQ(text_of(read(text, {"sharding.spec.model.norm.weight=[null]",
                                "sharding.spec.model.layers.*[0]=[[fsdp, data], null, null]",
                                "sharding.spec.lm_head=null"})),
            "model.norm.weight: [null] (command line)\n"
            "model.layers.*[0]: [[fsdp, data], null, null] (command line)\n");
  const test::TemporaryFolder folder;
  const auto file = folder.write("s.yaml", "model.norm.weight: [fsdp]\n");
  EXPECT_EQ(
      text_of(read("", {"sharding.spec.lm_head.weight=[shard, null]", "sharding.spec=" + file})),
      "model.norm.weight: [fsdp] (" + file +
          ":1)\n"
          "lm_head.weight: [shard, null] (command line)\n");
}

TEST(SpecInput, SurvivesBeingWritten) {
  const auto inputs = parse_inputs(
      some_data +
          "sharding: {spec: {'model.layers.*[0]': [[fsdp, data], null, []], 'a b': ['null', x]}}\n",
      "f.yaml");
  const auto written = to_yaml(inputs);
  const auto again = parse_inputs(written, "g.yaml");
  EXPECT_EQ(to_yaml(again), written);
  ASSERT_EQ(again.sharding.spec->entries.size(), 2U);
  EXPECT_EQ(again.sharding.spec->entries[0].dims, (Dims{{"fsdp", "data"}, {}, {}}));
  EXPECT_EQ(again.sharding.spec->entries[1].dims, (Dims{{"null"}, {"x"}}));
}

TEST(SpecInput, TheFilesOfOursAreWhatTheySay) {
  using enum sharding::ResidualLayout;
  const auto table = model::parameter_table(model::ModelConfig().resolved());
  const comm::ParallelDims data_only({{"replicate", 2}, {"shard", 2}});
  const comm::ParallelDims three_axes({{"replicate", 2}, {"shard", 2}, {"tensor", 2}});
  const auto compiled = [&](const char* file, const comm::ParallelDims& dims) {
    const auto path = test::source_file(fmt::format("inputs/specs/{}.yaml", file));
    return sharding::compile(read("", {"sharding.spec=" + path}), table, dims, whole);
  };
  const auto builtin = [&](sharding::ResidualLayout residual, const comm::ParallelDims& dims) {
    return sharding::compile(sharding::builtin_spec(table, dims, residual), table, dims);
  };
  EXPECT_EQ(compiled("fsdp", data_only).placements, builtin(whole, data_only).placements);
  EXPECT_EQ(compiled("fsdp-tensor-sequence", three_axes).placements,
            builtin(sequence, three_axes).placements);
  EXPECT_EQ(compiled("fsdp-tensor-sequence", three_axes).residual, sequence);
  EXPECT_EQ(compiled("fsdp-tensor-hidden", three_axes).residual, hidden);
  EXPECT_EQ(compiled("tensor", three_axes).residual, whole);
  const auto tensor = compiled("tensor", three_axes).placements;
  for (const auto& placement : tensor) EXPECT_TRUE(placement.sharded.none());
  const auto hybrid = compiled("hybrid", data_only).placements;
  for (std::size_t i = 0; i < hybrid.size(); ++i)
    EXPECT_EQ(hybrid[i].sharded.any(), table.parameters[i].shape.size() == 2);
}

TEST(SpecInput, WhatIsNoSpec) {
  EXPECT_EQ(error_of_spec("sharding:\n  spec: [a]\n"),
            "f.yaml:3: sharding.spec: expected a file or a map of names, got a list");
  EXPECT_EQ(error_of_spec("sharding:\n  spec:\n    lm_head: shard\n"),
            "f.yaml:4: lm_head: expected a list with an axis or null for each dim, got 'shard'");
  EXPECT_EQ(error_of_spec("sharding:\n  spec:\n    lm_head: [[[a]]]\n"),
            "f.yaml:4: lm_head: expected an axis, null or a list of axes for a dim, got a list");
  EXPECT_EQ(error_of_spec("sharding:\n  spec:\n    lm_head: [{a: b}]\n"),
            "f.yaml:4: lm_head: expected an axis, null or a list of axes for a dim, got a group of "
            "keys");
  EXPECT_EQ(
      error_of_spec("sharding:\n  spec:\n    lm_head: {weight: [a]}\n    lm_head.weight: [b]\n"),
      "f.yaml:5: duplicate name 'lm_head.weight'; it is already at f.yaml:4");
  EXPECT_EQ(error_of_spec("sharding:\n  spec:\n    lm_head: [a]\n    lm_head: [b]\n"),
            "f.yaml:5: duplicate key 'lm_head'; it is already at f.yaml:4");
  EXPECT_EQ(error_of_spec("", {"sharding.spec.lm_head=[shard]"}),
            "command line: 'sharding.spec.lm_head=[shard]' changes an entry of a spec, but no spec "
            "is given; set sharding.spec");
  EXPECT_EQ(error_of_spec("sharding: {spec: {}}\n", {"sharding.spec.lm_head"}),
            "command line: 'sharding.spec.lm_head' is not of the form sharding.spec.NAME=[...]");
  EXPECT_EQ(error_of_spec("", {"sharding.spek=x"}),
            "command line: unknown key 'sharding.spek'; did you mean 'sharding.spec'?");
}

}  // namespace
}  // namespace llamesh::config
