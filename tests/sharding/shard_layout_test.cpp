#include "sharding/shard_layout.hpp"

#include <gtest/gtest.h>

#include "sharding/wrap_policy.hpp"

namespace llamesh::sharding {
namespace {

model::ModelConfig odd_config(bool tied) {
  model::ModelConfig c;
  c.hidden_size = 18;
  c.intermediate_size = 13;
  c.num_hidden_layers = 3;
  c.num_attention_heads = 3;
  c.num_key_value_heads = 1;
  c.head_dim = 6;
  c.vocab_size = 37;
  c.tie_word_embeddings = tied;
  return c.resolved();
}

class EveryLayout : public testing::TestWithParam<std::tuple<int, Wrap, bool>> {};

comm::ParallelDims shards(int count) {
  return comm::ParallelDims({{"shard", count}});
}

TEST_P(EveryLayout, EveryElementLiesOnExactlyOneRank) {
  const auto [shard_size, wrap, tied] = GetParam();
  const auto table = model::parameter_table(odd_config(tied));
  const ShardLayout layout(table, make_units(table, {wrap, 300}), shards(shard_size));
  std::vector<std::vector<int>> seen;
  for (const auto& p : table.parameters) seen.emplace_back(static_cast<std::size_t>(p.numel()), 0);
  for (std::size_t u = 0; u < layout.units().size(); ++u)
    for (int rank = 0; rank < shard_size; ++rank) {
      std::int64_t end = 0;  // end of earlier pieces in the rank's shard
      for (const auto& piece : layout.pieces(u, rank)) {
        EXPECT_EQ(piece.offset, end);
        end += piece.count;
        EXPECT_LE(end, layout.units()[u].shard_numel);
        const auto place = layout.place(piece.parameter);
        EXPECT_EQ(place.unit, u);
        EXPECT_EQ(place.offset + piece.begin, rank * layout.units()[u].shard_numel + piece.offset);
        EXPECT_EQ(layout.range(piece, rank).box, Box::whole(table[piece.parameter].shape));
        for (std::int64_t i = 0; i < piece.count; ++i)
          ++seen[model::index(piece.parameter)][static_cast<std::size_t>(piece.begin + i)];
      }
    }
  for (const auto& elements : seen)
    for (const int times : elements) ASSERT_EQ(times, 1);
}

TEST_P(EveryLayout, ShardsAreEqualAndAligned) {
  const auto [shard_size, wrap, tied] = GetParam();
  const auto table = model::parameter_table(odd_config(tied));
  const ShardLayout layout(table, make_units(table, {wrap, 300}), shards(shard_size));
  std::int64_t sum = 0;
  for (const auto& unit : layout.units()) {
    EXPECT_EQ(unit.shard_numel % 32, 0);
    EXPECT_EQ(unit.padded_numel, unit.shard_numel * shard_size);
    EXPECT_GE(unit.padded_numel, unit.numel);
    EXPECT_LT(unit.padded_numel, unit.numel + std::int64_t{32} * shard_size);
    sum += unit.shard_numel;
  }
  EXPECT_EQ(layout.shard_numel(), sum);
}

TEST(ShardLayout, MatricesUsedTogetherAreNeighbors) {
  const auto table = model::parameter_table(odd_config(false));
  const ShardLayout layout(table, make_units(table, {}), shards(4));
  for (const auto layer : table.layers) {
    const auto self_attn = table.child(layer, "self_attn"), mlp = table.child(layer, "mlp");
    const auto expect_neighbors = [&](model::ModuleId parent, const char* first,
                                      const char* second) {
      const auto id = table.weight_module(parent, first).weight;
      EXPECT_EQ(layout.place(table.weight_module(parent, second).weight).offset,
                layout.place(id).offset + table[id].numel());
    };
    expect_neighbors(self_attn, "q_proj", "k_proj");
    expect_neighbors(self_attn, "k_proj", "v_proj");
    expect_neighbors(mlp, "gate_proj", "up_proj");
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, EveryLayout,
                         testing::Combine(testing::Values(1, 2, 3, 4, 7, 64),
                                          testing::Values(Wrap::layer, Wrap::size, Wrap::none),
                                          testing::Bool()));

}  // namespace
}  // namespace llamesh::sharding
