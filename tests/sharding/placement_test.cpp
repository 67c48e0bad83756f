#include "sharding/placement.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "placements.hpp"
#include "sharding/shard_layout.hpp"
#include "sharding/tensor_placements.hpp"
#include "sharding/wrap_policy.hpp"
#include "support.hpp"

namespace llamesh::sharding {
namespace {

TEST(Placement, PartsOfACutMatrixAreEqualAndNumberedByRank) {
  const comm::ParallelDims dims({{"replicate", 2}, {"shard", 2}, {"tensor", 2}});
  const model::Parameter matrix{"w", {6, 8}, {}, model::Initial::normal};
  const Placement by_columns{{{}, dims.named({"tensor"})}, dims.named({"shard"})};
  EXPECT_EQ(parts(by_columns, dims), 2);
  EXPECT_EQ(part(by_columns, dims, matrix, 0), (Box{{0, 0}, {6, 4}}));
  EXPECT_EQ(part(by_columns, dims, matrix, 1), (Box{{0, 4}, {6, 4}}));
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(part_of(by_columns, dims, rank), rank % 2);
  EXPECT_EQ(by_columns.replicated(dims), dims.named({"replicate"}));
  const Placement by_both{{dims.named({"shard"}), dims.named({"tensor"})}, {}};
  EXPECT_EQ(parts(by_both, dims), 4);
  EXPECT_EQ(part(by_both, dims, matrix, 3), (Box{{3, 4}, {3, 4}}));
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(part_of(by_both, dims, rank), rank % 4);
}

TEST(Placement, ADimThatDoesNotDivideIsNamed) {
  const comm::ParallelDims dims({{"tensor", 4}});
  const model::Parameter matrix{"model.norm.weight", {6}, {}, model::Initial::ones};
  try {
    part({{dims.all()}, {}}, dims, matrix, 0);
    FAIL() << "6 elements were cut into 4";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "model.norm.weight: dim 0 of 6 elements cannot be cut into 4 equal parts");
  }
}

TEST(Placement, AVocabularyIsPaddedToEqualPartsOnAllRanks) {
  const comm::ParallelDims dims({{"shard", 2}, {"tensor", 4}});
  auto config = test::even_config();
  config.num_attention_heads = 4;
  config.num_key_value_heads = 4;
  config.head_dim = 4;
  for (const auto& [vocab_size, rows, last] :
       {std::tuple{38, 10, 8}, {49, 16, 1}, {40, 10, 10}, {259, 72, 43}}) {
    config.vocab_size = vocab_size;
    const auto table = model::parameter_table(config);
    const auto placements = tensor_parallel_placements(table, dims, {});
    const auto local = local_table(table, dims, placements);
    for (const auto id : {table.embed_tokens.weight, table.lm_head.weight}) {
      EXPECT_EQ(local[id].shape, (Shape{rows, 12})) << vocab_size;
      const auto& placement = placements[model::index(id)];
      EXPECT_EQ(part(placement, dims, table[id], 0), (Box{{0, 0}, {rows, 12}}));
      EXPECT_EQ(part(placement, dims, table[id], 3), (Box{{3 * rows, 0}, {last, 12}}));
    }
  }
}

TEST(Placement, EachTensorRankHasARowOfTheVocabulary) {
  const comm::ParallelDims dims({{"tensor", 4}});
  auto config = test::even_config();
  config.num_attention_heads = 4;
  config.num_key_value_heads = 4;
  config.head_dim = 4;
  config.vocab_size = 5;  // 2 + 2 + 1 + 0
  const auto table = model::parameter_table(config);
  EXPECT_EQ(test::error_of(
                [&] { local_table(table, dims, tensor_parallel_placements(table, dims, {})); }),
            "model.vocab_size 5 cannot be divided among 4 ranks (mesh.axes.tensor, "
            "--tensor-parallel-size); 2 would do");
}

/// Returns the message for a Llama of 6 heads that share `kv_heads`, divided among `ranks`.
std::string refusal(std::int64_t kv_heads, std::int64_t intermediate_size, int ranks) {
  auto config = test::even_config();
  config.num_attention_heads = 6;
  config.num_key_value_heads = kv_heads;
  config.head_dim = 4;
  config.intermediate_size = intermediate_size;
  const auto table = model::parameter_table(config);
  const auto dims = tensor_axis_for(table, comm::ParallelDims({{"shard", 1}, {"tensor", ranks}}));
  return test::error_of(
      [&] { local_table(table, dims, tensor_parallel_placements(table, dims, {})); });
}

TEST(Placement, OffersNumbersOfRanksThatDivideTheWholeModel) {
  // Of 60, also 4 and 5 are divisors, but not of 6 heads.
  EXPECT_NE(refusal(3, 60, 4).find("divided among 4 ranks"), std::string::npos);
  EXPECT_NE(refusal(3, 60, 4).find("; 3 or 6 would do"), std::string::npos) << refusal(3, 60, 4);
  // 2 ranks cannot share 3 kv heads; 6 can, two for each head.
  EXPECT_NE(refusal(3, 60, 2).find("num_key_value_heads 3"), std::string::npos);
  EXPECT_NE(refusal(3, 60, 2).find("; 3 would do"), std::string::npos) << refusal(3, 60, 2);
  EXPECT_NE(refusal(3, 61, 2).find("; no number above 1 divides all of this model"),
            std::string::npos);
}

/// Returns a mixture-of-experts table: Llama's matrices plus a stack of matrices.
model::ParameterTable table_with_experts() {
  auto table = model::parameter_table(test::even_config());
  table.parameters.push_back({"experts", {4, 6, 10}, table.root, model::Initial::normal});
  return table;
}

TEST(Placement, EveryElementLiesOnceInEachGroupOfReplicas) {
  const comm::ParallelDims dims({{"replicate", 2}, {"shard", 2}, {"tensor", 2}});
  auto table = table_with_experts();
  for (const auto id : {table.embed_tokens.weight, table.lm_head.weight})
    table.parameters[model::index(id)].shape[0] = 37;  // padded if it is split by rows
  const ShardLayout layout(table, make_units(table, {}), dims, test::cut_in_turn(table, dims));
  for (std::size_t p = 0; p < table.parameters.size(); ++p) {
    const auto id = static_cast<ParameterId>(p);
    const auto replicas = dims.group_size(layout.placement(id).replicated(dims));
    std::vector<int> seen(static_cast<std::size_t>(table[id].numel()), 0);
    for (int rank = 0; rank < dims.ranks(); ++rank)
      for (const auto& piece : layout.pieces(layout.place(id).unit, rank))
        if (piece.parameter == id)
          for_each_run(table[id].shape, layout.range(piece, rank),
                       [&](std::int64_t begin, std::int64_t, std::int64_t count) {
                         for (std::int64_t i = begin; i < begin + count; ++i)
                           ++seen.at(static_cast<std::size_t>(i));
                       });
    for (const int times : seen) ASSERT_EQ(times, replicas) << table[id].name;
    std::int64_t together = 0;
    for (const auto& box : layout.parts(id)) together += box.numel();
    EXPECT_EQ(together, table[id].numel());
  }
}

}  // namespace
}  // namespace llamesh::sharding
