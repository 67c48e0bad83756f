#include "sharding/fsdp.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "core/philox.hpp"
#include "device/device.hpp"
#include "mpi_world.hpp"
#include "placements.hpp"

namespace llamesh::sharding {
namespace {

using model::Pass;

constexpr std::uint64_t seed = 3;
constexpr float stddev = 0.5F;

using PlacementsOf = Placements (*)(const model::ParameterTable&, const comm::ParallelDims&);

/// A model on a mesh of all ranks; its units in the order in which the forward pass enters them.
struct Sharded {
  Sharded(const comm::ParallelDims& dims, PlacementsOf placements, const ShardingOptions& options,
          const PrecisionOptions& precision = {})
      : table(model::parameter_table(test::even_config())),
        layout(table, make_units(table, {}, dims, placements(table, dims)), dims,
               placements(table, dims)),
        mesh(test::world(), comm::discover_topology(test::world(), 0), dims),
        state(layout, mesh, precision, {"exp_avg"}),
        fsdp(state, mesh, options, precision) {
    state.initialize(seed, stddev);
    fsdp.on_master_weights_updated();
  }
  void enter(std::size_t unit, Pass pass) { fsdp.enter(layout.units()[unit].modules[0], pass); }
  /// Whether two units are gathered together.
  bool are_one(std::size_t a, std::size_t b) const {
    return layout.units()[a].modules == layout.units()[b].modules;
  }
  void leave(std::size_t unit, Pass pass) { fsdp.leave(layout.units()[unit].modules[0], pass); }

  model::ParameterTable table;
  ShardLayout layout;
  comm::DeviceMesh mesh;
  ShardedState state;
  Fsdp fsdp;
};

/// The meshes of this number of ranks, with placements that fit them.
struct Case {
  comm::ParallelDims dims;
  PlacementsOf placements;
};
std::vector<Case> cases() {
  const int ranks = test::world().size();
  std::vector<Case> all;
  for (const int replicate : {1, 2, 4, 8})
    if (ranks % replicate == 0)
      all.push_back({comm::ParallelDims({{"replicate", replicate}, {"shard", ranks / replicate}}),
                     whole_and_sharded});
  if (ranks >= 4)
    all.push_back(
        {comm::ParallelDims({{"replicate", 2}, {"shard", ranks / 2}}), test::sharded_in_part});
  all.push_back({comm::ParallelDims({{"replicate", 1}, {"shard", ranks}}), test::sharded_in_part});
  if (ranks % 2 == 0)
    all.push_back({comm::ParallelDims({{"shard", ranks / 2}, {"tensor", 2}}), test::cut_in_turn});
  if (ranks == 8)
    all.push_back(
        {comm::ParallelDims({{"replicate", 2}, {"shard", 2}, {"tensor", 2}}), test::cut_in_turn});
  return all;
}

/// The values that a rank's part of a parameter starts with.
std::vector<float> initial_part(const Sharded& s, ParameterId id) {
  const auto& parameter = s.table[id];
  const auto& dims = s.layout.dims();
  const auto box =
      s.layout.parts(id)[static_cast<std::size_t>(s.layout.part_of(id, test::world().rank()))];
  std::vector<float> values(static_cast<std::size_t>(box.numel()), 1.0F);
  if (parameter.initial == model::Initial::ones) return values;
  std::vector<float> whole(static_cast<std::size_t>(parameter.numel()));
  fill_normal(whole.data(), 0, parameter.numel(), seed, parameter.name, stddev);
  for_each_run(parameter.shape, {box, 0, box.numel()},
               [&](std::int64_t begin, std::int64_t at, std::int64_t count) {
                 std::copy_n(whole.begin() + begin, count, values.begin() + at);
               });
  EXPECT_EQ(dims.ranks(), test::world().size());
  return values;
}

/// Adds this rank's number, counted from 1, to a gradient.
void add_mine(const model::GradientSlot& slot) {
  const auto mine = static_cast<float>(test::world().rank() + 1);
  for (float& value : slot.tensor.span<float>())
    value = (slot.accumulate == Accumulate::yes ? value : 0.0F) + mine;
}

TEST(Fsdp, AGatheredUnitIsTheMastersOnEveryMesh) {
  for (const auto& [dims, placements] : cases())
    for (const int prefetch : {0, 1}) {
      Sharded s(dims, placements,
                {.strategy = Strategy::full_shard, .wrap = {}, .prefetch = prefetch});
      for (std::size_t u = 0; u < s.layout.units().size(); ++u) {
        s.enter(u, Pass::forward);
        for (const auto id : s.layout.units()[u].parameters) {
          const Tensor seen = s.fsdp.parameter(id);
          const auto& shape = s.layout.local_shape(id);
          ASSERT_EQ(seen.dims(), static_cast<int>(shape.size()));
          EXPECT_EQ(seen.size(0), shape[0]);
          EXPECT_TRUE(std::ranges::equal(seen.span<float>(), initial_part(s, id)))
              << s.table[id].name << " on " << comm::to_string(dims);
        }
        s.leave(u, Pass::forward);
      }
      s.enter(0, Pass::forward);  // takes back what was gathered ahead
      s.leave(0, Pass::forward);
    }
}

TEST(Fsdp, GradientsAreSummedOverDataRanksAndMicroBatches) {
  for (const auto& [dims, placements] : cases()) {
    Sharded s(dims, placements, {.strategy = Strategy::full_shard, .wrap = {}});
    const auto units = s.layout.units().size();
    for (int step = 0; step < 2; ++step) {  // the second overwrites what the first has left
      for (const bool last : {false, true}) {
        s.fsdp.begin_micro_batch({.first = !last, .last = last});
        for (std::size_t u = units; u-- > 0;) {
          if (u > 0 && s.are_one(u - 1, u)) continue;
          s.enter(u, Pass::backward);
          for (auto of_one = u; of_one < units && s.are_one(u, of_one); ++of_one)
            for (const auto id : s.layout.units()[of_one].parameters) add_mine(s.fsdp.gradient(id));
          s.leave(u, Pass::backward);
        }
      }
      s.fsdp.finish_gradients();
      const auto group = dims.group(dims.data(), test::world().rank());
      const int sum = std::accumulate(group.begin(), group.end(), static_cast<int>(group.size()));
      for (std::size_t u = 0; u < units; ++u)
        for (const auto& piece : s.layout.pieces(u, test::world().rank()))
          for (const float value :
               s.state.gradients().shards[u].slice(piece.offset, piece.count).span<float>())
            ASSERT_EQ(value, static_cast<float>(2 * sum)) << comm::to_string(dims);
    }
  }
}

TEST(Fsdp, AUnitStaysGatheredUntilItIsLeftAsOftenAsItWasEntered) {
  const auto [dims, placements] = cases().front();
  Sharded s(dims, placements, {.strategy = Strategy::full_shard, .wrap = {}, .prefetch = 0});
  const auto id = s.layout.units()[0].parameters[0];
  s.enter(0, Pass::evaluate);
  s.enter(0, Pass::evaluate);
  s.leave(0, Pass::evaluate);
  EXPECT_TRUE(std::ranges::equal(s.fsdp.parameter(id).span<float>(), initial_part(s, id)));
  s.leave(0, Pass::evaluate);
  EXPECT_THROW(s.fsdp.parameter(id), std::exception) << "outside of its module";
  EXPECT_THROW(s.fsdp.gradient(id), std::exception) << "outside of its module";
}

// An expert without tokens: in the first step in one micro-batch of two, in the second in both.
TEST(Fsdp, AnAbsentGradientIsZero) {
  for (const auto& [dims, placements] : cases()) {
    Sharded s(dims, placements, {.strategy = Strategy::full_shard, .wrap = {}});
    const auto units = s.layout.units().size();
    const auto absent = s.layout.units()[units / 2].parameters.front();
    for (int step = 0; step < 2; ++step) {
      for (const bool last : {false, true}) {
        s.fsdp.begin_micro_batch({.first = !last, .last = last});
        for (std::size_t u = units; u-- > 0;) {
          if (u > 0 && s.are_one(u - 1, u)) continue;
          s.enter(u, Pass::backward);
          for (auto of_one = u; of_one < units && s.are_one(u, of_one); ++of_one)
            for (const auto id : s.layout.units()[of_one].parameters) {
              if (id == absent && (step == 1 || !last)) {
                s.fsdp.no_gradient(id);
                continue;
              }
              const auto slot = s.fsdp.gradient(id);
              for (float& value : slot.tensor.span<float>())
                value = (slot.accumulate == Accumulate::yes ? value : 0.0F) + 1;
            }
          s.leave(u, Pass::backward);
        }
      }
      s.fsdp.finish_gradients();
      const auto ranks = static_cast<float>(dims.group_size(dims.data()));
      for (std::size_t u = 0; u < units; ++u)
        for (const auto& piece : s.layout.pieces(u, test::world().rank())) {
          const float passes = piece.parameter == absent ? 1 - static_cast<float>(step) : 2;
          for (const float value :
               s.state.gradients().shards[u].slice(piece.offset, piece.count).span<float>())
            ASSERT_EQ(value, passes * ranks) << comm::to_string(dims) << " step " << step;
        }
    }
  }
}

TEST(Fsdp, AGradientThatNobodyWroteIsABug) {
  const auto [dims, placements] = cases().front();
  Sharded s(dims, placements, {.strategy = Strategy::full_shard, .wrap = {}, .prefetch = 0});
  s.enter(0, Pass::backward);
  EXPECT_THROW(s.leave(0, Pass::backward), std::exception);
}

}  // namespace
}  // namespace llamesh::sharding
