#include "optim/outer_optimizer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/philox.hpp"
#include "optim/sharded_model.hpp"

namespace llamesh::optim {
namespace {

using test::MeshSizes;
using test::ShardedModel;
using test::world;
using Actions = std::vector<OuterAction>;
using enum OuterAction::Kind;

/// Walks through a run, step after step.
class Schedule {
 public:
  explicit Schedule(const OuterOptions& options)
      : options_(options), sent_after_(static_cast<std::size_t>(options.fragments)) {}
  Actions after(std::int64_t step, std::int64_t last_step) {
    auto actions = outer_actions(options_, step, last_step, sent_after_);
    for (const auto& action : actions)
      sent_after_[static_cast<std::size_t>(action.fragment)] = action.kind == send ? step : 0;
    return actions;
  }

 private:
  OuterOptions options_;
  std::vector<std::int64_t> sent_after_;
};

TEST(OuterActions, ExchangeEverySoManySteps) {
  Schedule schedule({.every_steps = 4});
  for (int step = 1; step <= 10; ++step)
    EXPECT_EQ(schedule.after(step, 10),
              step % 4 == 0 || step == 10 ? (Actions{{send, 0}, {apply, 0}}) : Actions())
        << step;
}

// A run that is extended does not apply again what it has applied at its end.
TEST(OuterActions, BeginAnewInARunThatIsExtended) {
  Schedule schedule({.every_steps = 4, .delay_steps = 2});
  for (int step = 1; step <= 4; ++step) schedule.after(step, 5);
  EXPECT_EQ(schedule.after(5, 5), (Actions{{apply_late, 0}, {send, 0}, {apply, 0}}));
  EXPECT_EQ(schedule.after(6, 12), Actions());
  EXPECT_EQ(schedule.after(7, 12), Actions());
  EXPECT_EQ(schedule.after(8, 12), (Actions{{send, 0}}));
}

TEST(OuterActions, FragmentsTakeTurnsAndArriveLate) {
  Schedule schedule({.every_steps = 4, .fragments = 2, .delay_steps = 1});
  const std::vector<Actions> expected{
      {},
      {{send, 1}},
      {{apply_late, 1}},
      {{send, 0}},
      {{apply_late, 0}},
      {{send, 1}},
      {{apply_late, 1}},
      {{send, 0}},
      {{apply_late, 0}, {send, 0}, {send, 1}, {apply, 0}, {apply, 1}}};
  for (int step = 1; step <= 9; ++step)
    EXPECT_EQ(schedule.after(step, 9), expected[static_cast<std::size_t>(step) - 1]) << step;
}

// Whatever is sent is applied once, in this order, and at the end all replicas are equal.
TEST(OuterActions, ApplyAllThatIsSent) {
  for (std::int64_t every = 1; every <= 6; ++every)
    for (std::int64_t fragments = 1; fragments <= every; ++fragments)
      for (std::int64_t delay = 0; delay < every; ++delay)
        for (const std::int64_t last : {1, 5, 12, 13}) {
          const OuterOptions options{
              .every_steps = every, .fragments = fragments, .delay_steps = delay};
          Schedule schedule(options);
          std::multiset<int> under_way;
          std::vector<std::int64_t> sent(static_cast<std::size_t>(fragments));
          for (std::int64_t step = 1; step <= last; ++step)
            for (const auto& action : schedule.after(step, last)) {
              const auto f = static_cast<std::size_t>(action.fragment);
              if (action.kind == send) {
                EXPECT_LE(step - sent[f], every);
                sent[f] = step;
                under_way.insert(action.fragment);
                EXPECT_EQ(under_way.count(action.fragment), 1U);
              } else {
                EXPECT_EQ(under_way.erase(action.fragment), 1U);
                EXPECT_TRUE(action.kind == apply_late || sent[f] == step);
              }
            }
          EXPECT_TRUE(under_way.empty());
          for (const auto step : sent) EXPECT_EQ(step, last);
        }
}

/// Returns what a replica has learned in a step, the same on each of its ranks.
float learned(const model::Parameter& parameter, std::int64_t element, int replica,
              std::int64_t step) {
  float value = 0;
  fill_normal(&value, element, 1, static_cast<std::uint64_t>(100 * step + replica), parameter.name,
              0.1F);
  return value;
}

/// DiLoCo for one number in double precision, as its authors describe it.
struct ReferenceNumber {
  const OuterOptions& options;
  std::vector<double> local;  ///< by replica
  double outer, momentum = 0, late = 0;

  void act(const OuterAction& action) {
    if (action.kind == send) {
      late = 0;
      for (const double of_replica : local)
        late += (outer - of_replica) / static_cast<double>(local.size());
      return;
    }
    const bool nesterov = options.name == OuterName::nesterov;
    if (nesterov) momentum = options.momentum * momentum + late;
    outer -= options.lr * (late + (nesterov ? options.momentum * momentum : 0));
    const double share = action.kind == apply_late ? options.local_share : 0;
    for (double& of_replica : local) of_replica = outer + share * (of_replica - outer);
  }
};

/// Takes steps in which replicas learn made-up numbers. The state must follow the reference.
void expect_like_reference(const OuterOptions& options, MeshSizes mesh,
                           const std::vector<std::string>& freeze, sharding::Offload offload) {
  mesh.apart = true;
  ShardedModel model(test::tiny_model(), mesh, {.outer = options}, freeze, offload);
  auto& state = model.state();
  const auto& dims = model.layout().dims();
  const int replica = dims.rank_in_group(dims.apart(), world().rank());
  state.initialize(1, 0.5F);
  const auto started = [&] {
    std::vector<std::vector<float>> shards;
    for (const auto& shard : state.masters().shards)
      shards.emplace_back(shard.span<float>().begin(), shard.span<float>().end());
    return shards;
  }();
  OuterOptimizer outer(options, state, model.mesh());
  outer.start();
  Schedule schedule(options);
  const std::int64_t last = 9;
  std::map<std::pair<std::size_t, std::int64_t>, ReferenceNumber> numbers;
  std::int64_t trained = 0;
  std::vector<int> fragment_of;
  for (const auto& unit : model.layout().units())
    fragment_of.push_back(unit.frozen ? -1 : static_cast<int>(trained++ % options.fragments));
  const auto for_each_number = [&](auto visit) {
    model.for_each_piece([&](std::size_t u, const sharding::Piece& piece) {
      if (fragment_of[u] < 0) return;
      const auto range = model.layout().range(piece, world().rank());
      const auto& parameter = model.table()[piece.parameter];
      for_each_run(parameter.shape, range,
                   [&](std::int64_t begin, std::int64_t at, std::int64_t count) {
                     for (std::int64_t i = 0; i < count; ++i)
                       visit(u, piece.offset + at + i, parameter, begin + i);
                   });
    });
  };
  for_each_number([&](std::size_t u, std::int64_t at, const auto&, std::int64_t) {
    const double value = started[u][static_cast<std::size_t>(at)];
    numbers.emplace(
        std::pair(u, at),
        ReferenceNumber{
            options, std::vector<double>(static_cast<std::size_t>(mesh.replicate), value), value});
  });
  std::set<std::size_t> updated;
  for (std::int64_t step = 1; step <= last; ++step) {
    for_each_number([&](std::size_t u, std::int64_t at, const auto& parameter, std::int64_t e) {
      state.masters().shards[u].template span<float>()[static_cast<std::size_t>(at)] +=
          learned(parameter, e, replica, step);
      auto& number = numbers.at({u, at});
      for (int r = 0; r < mesh.replicate; ++r)
        number.local[static_cast<std::size_t>(r)] += learned(parameter, e, r, step);
    });
    updated.clear();
    outer.after_step(step, last, [&](std::size_t unit) { updated.insert(unit); });
    outer.settle();
    state.stream().record().wait();
    const auto actions = schedule.after(step, last);
    for_each_number([&](std::size_t u, std::int64_t at, const auto& parameter, std::int64_t) {
      auto& number = numbers.at({u, at});
      bool applies = false;
      for (const auto& action : actions) {
        if (action.fragment != fragment_of[u]) continue;
        number.act(action);
        applies |= action.kind != send;
      }
      EXPECT_EQ(updated.contains(u), applies);
      const auto i = static_cast<std::size_t>(at);
      EXPECT_NEAR(state.masters().shards[u].template span<float>()[i],
                  number.local[static_cast<std::size_t>(replica)], 1e-5)
          << parameter.name << ", step " << step;
      EXPECT_NEAR(state.outer().front().shards[u].template span<float>()[i], number.outer, 1e-5)
          << parameter.name << ", step " << step;
    });
  }
  // Padding stays zero, and frozen weights as they were.
  for (std::size_t u = 0; u < started.size(); ++u)
    EXPECT_TRUE(fragment_of[u] < 0 || model.padding_of(u, state.masters().shards[u]) == 0);
}

TEST(OuterOptimizer, FollowsDilocoOnEveryMesh) {
  const int ranks = world().size();
  if (ranks == 1) return;
  std::vector<MeshSizes> meshes{{ranks, 1}};
  if (ranks == 4) {
    meshes.push_back({2, 2});
    meshes.push_back({.replicate = 2, .shard = 1, .tensor = 2});
    meshes.push_back({.replicate = 2, .shard = 1, .context = 2});
  }
  for (const auto& mesh : meshes)
    for (const auto& options :
         {OuterOptions{.every_steps = 4},
          OuterOptions{.every_steps = 1, .name = OuterName::sgd, .lr = 1},
          OuterOptions{.every_steps = 4, .fragments = 3, .delay_steps = 2},
          OuterOptions{.every_steps = 3, .delay_steps = 1, .local_share = 0}}) {
      expect_like_reference(options, mesh, {}, sharding::Offload::none);
      expect_like_reference(options, mesh, {"model.layers.0"}, sharding::Offload::none);
      if (options.delay_steps == 0)
        expect_like_reference(options, mesh, {}, sharding::Offload::all);
    }
}

TEST(OuterOptimizer, RefusesWhatContradictsItself) {
  const int ranks = world().size();
  const auto refusal = [&](OuterOptions options, MeshSizes mesh,
                           sharding::Offload offload = sharding::Offload::none) {
    mesh.apart = true;
    const ShardedModel model(test::tiny_model(), mesh);
    return test::error_of([&] { check(options, model.layout(), offload); });
  };
  EXPECT_EQ(refusal({.every_steps = 8}, {1, ranks}),
            fmt::format("optimizer.outer.every_steps is 8, but the mesh replicate=1 x shard={} x "
                        "tensor=1 has one replica, which has nothing to exchange; leave "
                        "optimizer.outer out, or use hybrid_shard or no_shard with several",
                        ranks));
  if (ranks == 1) return;
  const MeshSizes mesh{ranks, 1};
  EXPECT_EQ(refusal({.every_steps = 2, .fragments = 3}, mesh),
            "optimizer.outer.fragments is 3, but each is exchanged after another one of 2 steps "
            "(optimizer.outer.every_steps); lower it");
  EXPECT_EQ(refusal({.every_steps = 99, .fragments = 9}, mesh),
            "optimizer.outer.fragments is 9, but the model has 4 units to train; lower it");
  EXPECT_EQ(refusal({.every_steps = 2, .delay_steps = 2}, mesh),
            "optimizer.outer.delay_steps is 2, but the next exchange begins after 2 steps "
            "(optimizer.outer.every_steps); lower it");
  EXPECT_EQ(refusal({.every_steps = 2, .delay_steps = 1}, mesh, sharding::Offload::optimizer),
            "optimizer.outer.delay_steps is 1, but with sharding.offload the weights are not on "
            "the device between steps; set it to 0");
  EXPECT_EQ(refusal({.every_steps = 2, .error_feedback = true}, mesh),
            "optimizer.outer.error_feedback is true, but exchanges in fp32 leave nothing out; set "
            "optimizer.outer.reduce_dtype to int8 or int4");
}

}  // namespace
}  // namespace llamesh::optim
