#include "sharding/fsdp.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "comm/mpi/backoff.hpp"
#include "core/philox.hpp"
#include "device/device.hpp"
#include "device/memory_meter.hpp"
#include "device/simulated/simulation.hpp"
#include "placements.hpp"
#include "support.hpp"

namespace llamesh::sharding {
namespace {

using model::Pass;

constexpr std::uint64_t weights_seed = 3;
constexpr float stddev = 0.5F;

using PlacementsOf = Placements (*)(const model::ParameterTable&, const comm::ParallelDims&);

/// A model on a mesh over all ranks, with units in forward-pass order.
struct Sharded {
  Sharded(const comm::ParallelDims& dims, PlacementsOf placements, const ShardingOptions& options,
          const PrecisionOptions& precision = {}, int ranks_per_node = 0, int layers = 2)
      : table(model::parameter_table(config_of(layers))),
        layout(table, make_units(table, {}, dims, placements(table, dims)), dims,
               placements(table, dims)),
        mesh(test::world(), comm::discover_topology(test::world(), ranks_per_node), dims),
        state(layout, mesh, precision, {Moment{"exp_avg"}}, options),
        fsdp(state, mesh, options, precision) {
    state.initialize(weights_seed, stddev);
    fsdp.on_master_weights_loaded();
  }
  void enter(std::size_t unit, Pass pass) { fsdp.enter(layout.units()[unit].modules[0], pass); }
  /// Returns true if two units are gathered together.
  bool are_one(std::size_t a, std::size_t b) const {
    return layout.units()[a].modules == layout.units()[b].modules;
  }
  void leave(std::size_t unit, Pass pass) { fsdp.leave(layout.units()[unit].modules[0], pass); }
  /// Enters and leaves units [0, end); calls visit(u) while each is gathered.
  template <class Visit>
  void pass_forward(std::size_t end, Visit visit) {
    for (std::size_t u = 0; u < end; ++u) {
      if (u == 0 || !are_one(u - 1, u)) enter(u, Pass::forward);
      visit(u);
      if (u + 1 == end || !are_one(u, u + 1)) leave(u, Pass::forward);
    }
  }
  /// Like pass_forward() over all units in reverse, with zero gradients.
  template <class Visit>
  void units_backward(Visit visit) {
    for (std::size_t u = layout.units().size(); u-- > 0;) {
      if (u + 1 == layout.units().size() || !are_one(u, u + 1)) enter(u, Pass::backward);
      visit(u);
      for (const auto id : layout.units()[u].parameters) fsdp.no_gradient(id);
      if (u == 0 || !are_one(u - 1, u)) leave(u, Pass::backward);
    }
  }
  /// Like units_backward(), for the last micro-batch in a step.
  template <class Visit>
  void pass_backward(Visit visit) {
    units_backward(visit);
    fsdp.finish_gradients();
  }
  static model::ModelConfig config_of(int layers) {
    auto config = test::even_config();
    config.num_hidden_layers = layers;
    return config;
  }

  model::ParameterTable table;
  ShardLayout layout;
  comm::DeviceMesh mesh;
  ShardedState state;
  Fsdp fsdp;
};

/// A mesh for this number of ranks, with matching placements.
struct Case {
  comm::ParallelDims dims;
  PlacementsOf placements;
  ReshardAfterForward reshard = ReshardAfterForward::by_strategy;
};

/// Returns the cases whose units are resharded to groups.
std::vector<Case> split_cases() {
  const int ranks = test::world().size();
  std::vector<Case> all;
  const auto add = [&](std::vector<comm::MeshAxis> axes, PlacementsOf placements, int group) {
    all.push_back({comm::ParallelDims(std::move(axes)).split("shard", group), placements,
                   ReshardAfterForward{group}});
  };
  if (ranks >= 4) add({{"replicate", 1}, {"shard", ranks}}, whole_and_sharded, 2);
  if (ranks == 8) {
    add({{"replicate", 1}, {"shard", 8}}, test::sharded_in_part, 4);
    add({{"replicate", 2}, {"shard", 4}}, test::sharded_in_part, 2);
    add({{"shard", 4}, {"tensor", 2}}, test::cut_in_turn, 2);
  }
  return all;
}

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
  if (ranks % 2 == 0) {
    all.push_back(
        {comm::ParallelDims({{"shard", ranks / 2}, {"expert", 2}}), test::divided_along_expert});
    // A made-up axis: its name says nothing, so that what it divides is given.
    all.push_back(
        {comm::ParallelDims({{"replicate", ranks / 2}, {"made-up", 2, comm::Divides::sequence}}),
         test::divided_along_expert});
  }
  if (ranks == 8)
    all.push_back({comm::ParallelDims({{"replicate", 2}, {"shard", 2}, {"expert", 2}}),
                   test::divided_along_expert});
  for (const auto& split : split_cases()) all.push_back(split);
  return all;
}

/// Returns the initial values for a rank's part of a parameter.
std::vector<float> initial_part(const Sharded& s, ParameterId id) {
  const auto& parameter = s.table[id];
  const auto& dims = s.layout.dims();
  const auto box =
      s.layout.parts(id)[static_cast<std::size_t>(s.layout.part_of(id, test::world().rank()))];
  std::vector<float> values(static_cast<std::size_t>(box.numel()), 1.0F);
  if (parameter.initial == model::Initial::ones) return values;
  std::vector<float> whole(static_cast<std::size_t>(parameter.numel()));
  fill_normal(whole.data(), 0, parameter.numel(), weights_seed, parameter.name, stddev);
  for_each_run(parameter.shape, {box, 0, box.numel()},
               [&](std::int64_t begin, std::int64_t at, std::int64_t count) {
                 std::copy_n(whole.begin() + begin, count, values.begin() + at);
               });
  EXPECT_EQ(dims.ranks(), test::world().size());
  return values;
}

/// Axes over which the gradient of a parameter must add up: those that divide the data, without
/// those along which the ranks hold different parts of the parameter.
comm::AxisSet gradient_axes_of(const Sharded& s, ParameterId id) {
  return s.layout.dims().gradient_axes() & ~s.layout.placement(id).split_axes();
}

/// Adds this rank's number, counted from 1, to a gradient.
void add_mine(const model::GradientSlot& slot) {
  const auto mine = static_cast<float>(test::world().rank() + 1);
  const auto add = [&]<class T>(std::span<T> values) {
    for (T& value : values)
      value = T((slot.accumulate == Accumulate::yes ? static_cast<float>(value) : 0.0F) + mine);
  };
  if (slot.tensor.dtype() == DType::bf16)
    add(slot.tensor.span<bf16>());
  else
    add(slot.tensor.span<float>());
}

TEST(Fsdp, AGatheredUnitIsTheMastersOnEveryMesh) {
  for (const auto& [dims, placements, reshard] : cases())
    for (const int prefetch : {0, 1, 4}) {
      Sharded s(dims, placements,
                {.strategy = Strategy::full_shard,
                 .wrap = {},
                 .reshard_after_forward = reshard,
                 .prefetch = prefetch});
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
      s.enter(0, Pass::forward);  // releases the prefetched units
      s.leave(0, Pass::forward);
    }
}

/// Ranks per node, and the dtype for gathering.
std::vector<std::pair<int, DType>> ways_to_gather() {
  return {{0, DType::bf16}, {1, DType::bf16}, {2, DType::bf16}, {1, DType::f32}, {2, DType::f32}};
}

/// Returns a parameter's values as fp32.
std::vector<float> values_of(const Tensor& tensor) {
  std::vector<float> values;
  if (tensor.dtype() == DType::f32)
    values.assign(tensor.span<float>().begin(), tensor.span<float>().end());
  else
    for (const auto value : tensor.span<bf16>()) values.push_back(static_cast<float>(value));
  return values;
}

// Changing master weights between the two passes shows which source each pass gathered from.
TEST(Fsdp, ABackwardPassGathersTheSecondaryShardsOfItsForwardPass) {
  for (const auto& [dims, placements, reshard] : split_cases())
    for (const auto& [ranks_per_node, dtype] : ways_to_gather()) {
      Sharded s(dims, placements,
                {.strategy = Strategy::full_shard,
                 .wrap = {},
                 .reshard_after_forward = reshard,
                 .prefetch = 2},
                {.parameters = dtype}, ranks_per_node);
      std::vector<std::vector<float>> seen(s.table.parameters.size());
      for (const float value : {100.0F, 200.0F}) {
        s.pass_forward(s.layout.units().size(), [&](std::size_t u) {
          for (const auto id : s.layout.units()[u].parameters)
            seen[model::index(id)] = values_of(s.fsdp.parameter(id));
        });
        test::world().barrier();
        for (const auto& shard : s.state.masters().shards)
          std::ranges::fill(shard.span<float>(), value);
        s.fsdp.on_master_weights_loaded();
        s.pass_backward([&](std::size_t u) {
          const bool kept = (s.layout.units()[u].sharded & dims.inner("shard")).any();
          for (const auto id : s.layout.units()[u].parameters) {
            auto& expected = seen[model::index(id)];
            if (!kept) std::ranges::fill(expected, value);
            EXPECT_EQ(values_of(s.fsdp.parameter(id)), expected)
                << s.table[id].name << " on " << comm::to_string(dims);
          }
        });
      }
    }
}

/// Returns each unit's bytes when gathered in bf16.
std::vector<std::int64_t> bytes_of_units(const comm::ParallelDims& dims, int layers) {
  const Sharded s(dims, whole_and_sharded, {}, {}, 0, layers);
  std::vector<std::int64_t> bytes;
  for (const auto& unit : s.layout.units())
    bytes.push_back(unit.padded_numel * size_of(DType::bf16));
  return bytes;
}

// In bf16 a unit is gathered into a copy, which ranks on a node share.
TEST(Fsdp, UnitsAreGatheredAheadWithinTheirNumberAndTheirBytes) {
  constexpr int layers = 6;
  constexpr std::size_t units = layers + 2;
  const int ranks = test::world().size();
  const comm::ParallelDims dims({{"shard", ranks}});
  const auto in_use = [] { return device::MemoryMeter::instance().in_use(); };
  const auto bytes = bytes_of_units(dims, layers);
  const std::int64_t layer = bytes[1];
  for (const auto& [prefetch, limit] :
       {std::pair<int, std::int64_t>{0, 0}, {1, 0}, {4, 0}, {2, layer - 1}, {3, 5 * layer / 2}}) {
    Sharded s(dims, whole_and_sharded,
              {.strategy = Strategy::full_shard,
               .wrap = {},
               .prefetch = prefetch,
               .prefetch_limit = limit},
              {.parameters = DType::bf16}, 0, layers);
    const auto before = in_use();
    const auto expect_gathered = [&](std::size_t u, int direction) {
      const auto in_use_now = (in_use() - before) * ranks;
      std::int64_t ahead = 0;
      auto next = u;
      for (int i = 0; i < prefetch; ++i) {
        next += static_cast<std::size_t>(direction);
        if (next >= units || (limit > 0 && ahead + bytes[next] > limit)) break;
        ahead += bytes[next];
      }
      EXPECT_EQ(in_use_now, bytes[u] + ahead)
          << "unit " << u << " prefetch " << prefetch << " limit " << limit;
    };
    s.pass_forward(units - 1, [&](std::size_t u) { expect_gathered(u, 1); });
    s.pass_backward([&](std::size_t u) { expect_gathered(u, -1); });
    EXPECT_EQ(in_use(), before);
  }
}

// Units that the next micro-batch enters first stay gathered, never more than may be gathered at a
// time.
TEST(Fsdp, TheFirstUnitsStayGatheredFromOneMicroBatchToTheNext) {
  constexpr int layers = 4;
  const int ranks = test::world().size();
  const comm::ParallelDims dims({{"shard", ranks}});
  const auto in_use = [] { return device::MemoryMeter::instance().in_use(); };
  const auto bytes = bytes_of_units(dims, layers);
  const auto units = bytes.size();
  const std::int64_t layer = bytes[1];
  ASSERT_LT(bytes[0], layer);
  const std::int64_t largest = *std::ranges::max_element(bytes);
  for (const auto& [prefetch, limit, kept] : {std::tuple<int, std::int64_t, std::size_t>{0, 0, 1},
                                              {1, 0, 2},
                                              {4, 0, 5},
                                              {2, layer - 1, 1},
                                              {2, layer, 2},
                                              {3, 2 * layer, 3}}) {
    Sharded s(dims, whole_and_sharded,
              {.strategy = Strategy::full_shard,
               .wrap = {},
               .prefetch = prefetch,
               .prefetch_limit = limit},
              {.parameters = DType::bf16}, 0, layers);
    auto& shard = *s.mesh.axis("shard").collectives;
    const auto before = in_use();
    const auto most = limit > 0 ? largest + limit : (1 + prefetch) * largest;
    const auto within = [&](std::size_t) { EXPECT_LE((in_use() - before) * ranks, most); };
    std::int64_t sent = 0, held_before = 0;
    for (const bool last : {false, false, true}) {
      s.fsdp.begin_micro_batch({.index = 1, .count = last ? 2 : 3});
      const auto sent_before = shard.bytes_sent();
      s.pass_forward(units - 1, within);
      s.units_backward(within);
      const auto sent_now = shard.bytes_sent() - sent_before;
      const auto held =
          std::accumulate(bytes.begin(), bytes.begin() + std::ptrdiff_t(kept), std::int64_t{0});
      EXPECT_EQ((in_use() - before) * ranks, last ? 0 : held) << prefetch << " " << limit;
      if (sent == 0) sent = sent_now;  // in the first one
      EXPECT_EQ(sent - sent_now, held_before * (ranks - 1) / ranks);
      held_before = held;
    }
    s.fsdp.finish_gradients();
  }
}

TEST(Fsdp, WhatStaysGatheredIsWhatWouldBeGatheredAgain) {
  auto some = split_cases();
  some.push_back(cases().front());
  for (const auto& [dims, placements, reshard] : some)
    for (const auto& [ranks_per_node, dtype] : ways_to_gather()) {
      if (test::world().size() % std::max(ranks_per_node, 1) != 0) continue;
      Sharded s(dims, placements,
                {.strategy = Strategy::full_shard, .wrap = {}, .reshard_after_forward = reshard},
                {.parameters = dtype}, ranks_per_node);
      std::vector<std::vector<float>> seen(s.table.parameters.size());
      const auto compare = [&](std::size_t u) {
        for (const auto id : s.layout.units()[u].parameters) {
          auto& known = seen[model::index(id)];
          if (known.empty()) known = values_of(s.fsdp.parameter(id));
          EXPECT_EQ(values_of(s.fsdp.parameter(id)), known) << s.table[id].name;
        }
      };
      for (const bool last : {false, false, true}) {
        s.fsdp.begin_micro_batch({.index = 1, .count = last ? 2 : 3});
        s.pass_forward(s.layout.units().size(), compare);
        s.units_backward(compare);
      }
      s.fsdp.finish_gradients();
    }
}

// Within a node, where no axis has staging memory.
TEST(Fsdp, SecondaryShardsAreAllocatedOnceAndCounted) {
  for (const auto& [dims, placements, reshard] : split_cases()) {
    Sharded s(dims, placements,
              {.strategy = Strategy::full_shard, .wrap = {}, .reshard_after_forward = reshard},
              {.parameters = DType::bf16});
    const auto units = s.layout.units().size();
    auto last = units - 1;  // stays gathered between the passes
    while (s.are_one(last - 1, last)) --last;
    std::int64_t kept = 0;
    for (std::size_t u = 0; u < last; ++u) {
      const auto& unit = s.layout.units()[u];
      if ((unit.sharded & dims.inner("shard")).any())
        kept += unit.padded_numel / static_cast<int>(reshard) * size_of(DType::bf16);
    }
    const auto before = device::MemoryMeter::instance().in_use();
    for (int step = 0; step < 3; ++step) {
      s.pass_forward(last, [](std::size_t) {});
      s.pass_backward([](std::size_t) {});
      EXPECT_EQ(device::MemoryMeter::instance().in_use() - before, kept)
          << comm::to_string(dims) << " step " << step;
    }
  }
}

class GradientSums : public testing::TestWithParam<std::tuple<Reduce, DType, Offload>> {};

TEST_P(GradientSums, AreOverDataRanksAndMicroBatches) {
  const auto [reduce, dtype, offload] = GetParam();
  for (const auto& [dims, placements, reshard] : cases()) {
    Sharded s(dims, placements,
              {.strategy = Strategy::full_shard,
               .wrap = {},
               .reshard_after_forward = reshard,
               .reduce = reduce,
               .offload = offload},
              {.reduce = dtype});
    const auto units = s.layout.units().size();
    for (int step = 0; step < 2; ++step) {  // the second step overwrites what the first one left
      for (const int micro_batch : {0, 1, 2}) {
        s.fsdp.begin_micro_batch({.index = micro_batch, .count = 3});
        for (std::size_t u = units; u-- > 0;) {
          if (u > 0 && s.are_one(u - 1, u)) continue;
          s.enter(u, Pass::backward);
          for (auto of_one = u; of_one < units && s.are_one(u, of_one); ++of_one)
            for (const auto id : s.layout.units()[of_one].parameters) add_mine(s.fsdp.gradient(id));
          s.leave(u, Pass::backward);
        }
      }
      s.fsdp.finish_gradients();
      for (std::size_t u = 0; u < units; ++u)
        for (const auto& piece : s.layout.pieces(u, test::world().rank())) {
          const auto group = dims.group(gradient_axes_of(s, piece.parameter), test::world().rank());
          const int sum =
              std::accumulate(group.begin(), group.end(), static_cast<int>(group.size()));
          for (const float value :
               s.state.gradients().shards[u].slice(piece.offset, piece.count).span<float>())
            ASSERT_EQ(value, static_cast<float>(3 * sum)) << comm::to_string(dims);
        }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fsdp, GradientSums,
                         testing::Combine(testing::Values(Reduce::each, Reduce::last),
                                          testing::Values(DType::f32, DType::bf16),
                                          testing::Values(Offload::none, Offload::all)));

TEST(Fsdp, AUnitStaysGatheredUntilItIsLeftAsOftenAsItWasEntered) {
  const auto [dims, placements, reshard] = cases().front();
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

// An expert without tokens: in the first step in one of two micro-batches, in the second step in
// both.
TEST(Fsdp, AnAbsentGradientIsZero) {
  for (const auto& [dims, placements, reshard] : cases()) {
    Sharded s(dims, placements,
              {.strategy = Strategy::full_shard, .wrap = {}, .reshard_after_forward = reshard});
    const auto units = s.layout.units().size();
    const auto absent = s.layout.units()[units / 2].parameters.front();
    for (int step = 0; step < 2; ++step) {
      for (const bool last : {false, true}) {
        s.fsdp.begin_micro_batch({.index = last ? 1 : 0, .count = 2});
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
      for (std::size_t u = 0; u < units; ++u)
        for (const auto& piece : s.layout.pieces(u, test::world().rank())) {
          const auto ranks =
              static_cast<float>(dims.group_size(gradient_axes_of(s, piece.parameter)));
          const float passes = piece.parameter == absent ? 1 - static_cast<float>(step) : 2;
          for (const float value :
               s.state.gradients().shards[u].slice(piece.offset, piece.count).span<float>())
            ASSERT_EQ(value, passes * ranks) << comm::to_string(dims) << " step " << step;
        }
    }
  }
}

TEST(Fsdp, AGradientThatNobodyWroteIsABug) {
  const auto [dims, placements, reshard] = cases().front();
  Sharded s(dims, placements, {.strategy = Strategy::full_shard, .wrap = {}, .prefetch = 0});
  s.enter(0, Pass::backward);
  EXPECT_THROW(s.leave(0, Pass::backward), std::exception);
}

// A rank reports its failed plan after the ranks have agreed.
TEST(Fsdp, WhatFailsInASimulationEndsNoWaitForRealRanks) {
  const auto plan_that_fails = [] {
    const device::Simulation simulation({});
    const comm::ParallelDims dims({{"replicate", 1}, {"shard", 2}});
    const auto table = model::parameter_table(test::even_config());
    const ShardLayout layout(table, make_units(table, {}), dims);
    comm::DeviceMesh mesh(comm::planned_topology(2, 2, 0), dims, 0);
    ShardedState state(layout, mesh, {}, {Moment{"exp_avg"}}, {});
    const Fsdp fsdp(state, mesh, {}, {});
    fail(ExitCode::bad_input, "no room");
  };
  EXPECT_THROW(plan_that_fails(), Error);
  EXPECT_NO_THROW(comm::throw_if_stopped());
}

}  // namespace
}  // namespace llamesh::sharding
