#include "sharding/pipeline_stages.hpp"

#include <gtest/gtest.h>

#include "sharding/shard_layout.hpp"
#include "sharding/wrap_policy.hpp"
#include "support.hpp"

namespace llamesh::sharding {
namespace {

model::ModelConfig config_of(int layers, bool tied = false, int vocab = 32) {
  model::ModelConfig c;
  c.hidden_size = 16;
  c.intermediate_size = 40;
  c.num_hidden_layers = layers;
  c.num_attention_heads = 2;
  c.vocab_size = vocab;
  c.tie_word_embeddings = tied;
  return c.resolved();
}

std::vector<std::size_t> sizes(const model::ModelConfig& config, const PipelineOptions& options,
                               int stages) {
  std::vector<std::size_t> all;
  std::size_t at = 0;
  for (const auto& range : chunk_layers(model::parameter_table(config), options, stages)) {
    EXPECT_EQ(range.first, at);
    at = range.last;
    all.push_back(range.last - range.first);
  }
  EXPECT_EQ(at, static_cast<std::size_t>(config.num_hidden_layers));
  return all;
}

using Sizes = std::vector<std::size_t>;

TEST(PipelineStages, HaveAsManyLayersIfTheHeadIsSmall) {
  EXPECT_EQ(sizes(config_of(8), {}, 4), (Sizes{2, 2, 2, 2}));
  EXPECT_EQ(sizes(config_of(8), {.chunks = 2}, 2), (Sizes{2, 2, 2, 2}));
  EXPECT_EQ(sizes(config_of(3), {}, 1), (Sizes{3}));
}

// A layer has 4 x 16 x 16 + 3 x 16 x 40 = 2944 products, a head of 368 rows 5888: two layers.
TEST(PipelineStages, CountTheHead) {
  EXPECT_EQ(sizes(config_of(8, false, 368), {}, 2), (Sizes{5, 3}));
  EXPECT_EQ(sizes(config_of(8, true, 368), {}, 2), (Sizes{5, 3}));
  EXPECT_EQ(sizes(config_of(7, false, 368), {}, 3), (Sizes{3, 3, 1}));
}

TEST(PipelineStages, TakeGivenLayersAndNameWhatDoesNotAddUp) {
  EXPECT_EQ(sizes(config_of(8), {.layers = {5, 1, 2}}, 3), (Sizes{5, 1, 2}));
  const auto refusal = [](const PipelineOptions& options, int stages) {
    return test::error_of([&] { sizes(config_of(8), options, stages); });
  };
  EXPECT_EQ(refusal({.layers = {5, 1, 1}}, 3),
            "pipeline.layers [5, 1, 1] adds up to 7 layers, but the model has 8; every chunk needs "
            "one or more");
  EXPECT_EQ(
      refusal({.layers = {4, 4}}, 3),
      "pipeline.layers has 2 numbers, but 3 pipeline stages with 1 chunks each have 3 chunks; "
      "give one number for each");
  EXPECT_EQ(refusal({.chunks = 3}, 3),
            "3 pipeline stages with 3 chunks each need 9 layers, but the model has 8; lower "
            "mesh.axes.pipeline or pipeline.chunks");
}

/// Each element of each parameter is on one rank of one stage; a tied embedding is on two stages.
TEST(PipelineStages, HaveEachParameterOnce) {
  for (const bool tied : {false, true})
    for (const int chunks : {1, 2}) {
      const auto table = model::parameter_table(config_of(6, tied));
      const comm::ParallelDims dims({{"replicate", 2}, {"pipeline", 3}, {"shard", 2}});
      const auto ranges = chunk_layers(table, {.chunks = chunks}, 3);
      auto placements = whole_and_sharded(table, dims);
      place_in_stages(placements, table, dims, ranges);
      const ShardLayout layout(table, make_units(table, {}, dims, placements), dims, placements);
      std::vector<std::int64_t> held(table.parameters.size()), counted(table.parameters.size());
      std::int64_t owned = 0;
      for (int rank = 0; rank < dims.ranks(); ++rank) {
        owned += layout.shard_numel(rank);
        for (std::size_t u = 0; u < layout.units().size(); ++u)
          for (const auto& piece : layout.pieces(u, rank)) {
            held[model::index(piece.parameter)] += piece.count;
            if (layout.placement(piece.parameter).is_first_copy(dims, rank))
              counted[model::index(piece.parameter)] += piece.count;
          }
      }
      for (std::size_t p = 0; p < held.size(); ++p) {
        const bool is_tied = tied && p == model::index(table.lm_head.weight);
        EXPECT_EQ(held[p], std::int64_t{2} * (is_tied ? 2 : 1) * table.parameters[p].numel());
        EXPECT_EQ(counted[p], table.parameters[p].numel()) << table.parameters[p].name;
      }
      EXPECT_GE(owned, 2 * table.numel());
      const auto stages_of = [&](model::ParameterId id) { return layout.placement(id).stages; };
      EXPECT_EQ(stages_of(table.embed_tokens.weight),
                tied ? (std::vector<int>{0, 2}) : std::vector<int>{0});
      EXPECT_EQ(stages_of(table.norm.weight), std::vector<int>{2});
      const auto in_layer_3 = table.weight_module(table.child(table.layers[3], "mlp"), "up_proj");
      EXPECT_EQ(stages_of(in_layer_3.weight), std::vector<int>{chunks == 1 ? 1 : 0});
      const auto text = describe_units(layout, Layers::each);
      EXPECT_NE(text.find(tied ? "stages 0, 2" : "stage 1"), std::string::npos) << text;
    }
}

}  // namespace
}  // namespace llamesh::sharding
