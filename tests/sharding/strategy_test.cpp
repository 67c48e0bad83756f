#include "sharding/strategy.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "support.hpp"

namespace llamesh::sharding {
namespace {

using enum Strategy;

/// Returns a topology with `per_node` ranks on each machine.
comm::Topology machines(const std::vector<int>& per_node) {
  std::vector<int> machine_of;
  std::vector<std::string> host_of;
  for (std::size_t m = 0; m < per_node.size(); ++m)
    for (int i = 0; i < per_node[m]; ++i) {
      machine_of.push_back(static_cast<int>(m));
      host_of.push_back("node" + std::to_string(m));
    }
  return comm::make_topology(machine_of, host_of, 0);
}

comm::ParallelDims mesh_of(Strategy strategy, const comm::MeshOptions& options,
                           const std::vector<int>& per_node,
                           ReshardAfterForward reshard = ReshardAfterForward::by_strategy,
                           SplitByNode by_node = SplitByNode::no) {
  model::ModelConfig config;
  config.num_key_value_heads = 2;
  return make_mesh(strategy, reshard, by_node, options, machines(per_node),
                   model::parameter_table(config.resolved()));
}

std::string shape(Strategy strategy, const std::vector<int>& per_node, int replicate = 0,
                  int shard = 0, int tensor = 1) {
  return comm::to_string(
      mesh_of(strategy, {.replicate = replicate, .shard = shard, .tensor = tensor}, per_node));
}

std::string refusal(Strategy strategy, const std::vector<int>& per_node, int replicate, int shard,
                    int tensor = 1) {
  try {
    shape(strategy, per_node, replicate, shard, tensor);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::bad_input);
    return e.what();
  }
  return "no error";
}

TEST(Strategy, AutoSizesFollowTheStrategy) {
  EXPECT_EQ(shape(full_shard, {2, 2}), "replicate=1 x shard=4");
  EXPECT_EQ(shape(shard_grad_op, {2, 2}), "replicate=1 x shard=4");
  EXPECT_EQ(shape(no_shard, {2, 2}), "replicate=4 x shard=1");
  EXPECT_EQ(shape(hybrid_shard, {2, 2}), "replicate=2 x shard=2");
  EXPECT_EQ(shape(hybrid_shard_zero2, {4, 4}), "replicate=2 x shard=4");
  EXPECT_EQ(shape(hybrid_shard, {1, 1, 1}), "replicate=3 x shard=1");
  EXPECT_EQ(shape(hybrid_shard, {1}), "replicate=1 x shard=1");
}

TEST(Strategy, GivenSizesAreTaken) {
  EXPECT_EQ(shape(hybrid_shard, {4}, 4, 1), "replicate=4 x shard=1");
  EXPECT_EQ(shape(hybrid_shard, {4}, 1, 4), "replicate=1 x shard=4");
  EXPECT_EQ(shape(hybrid_shard, {4}, 2), "replicate=2 x shard=2");
  EXPECT_EQ(shape(hybrid_shard, {4, 4}, 0, 2), "replicate=4 x shard=2");
}

TEST(Strategy, TheShardAxisIsSplitByNodeIfAsked) {
  const auto ranks_on_a_node = [](const comm::MeshOptions& options,
                                  const std::vector<int>& per_node,
                                  ReshardAfterForward reshard = ReshardAfterForward::by_strategy) {
    const auto mesh = mesh_of(full_shard, options, per_node, reshard, SplitByNode::yes);
    return mesh.group_size(mesh.inner("shard"));
  };
  EXPECT_EQ(ranks_on_a_node({}, {4, 4}), 4);
  EXPECT_EQ(ranks_on_a_node({}, {1, 1}), 1);
  EXPECT_EQ(ranks_on_a_node({}, {4}), 4);
  EXPECT_EQ(ranks_on_a_node({}, {3, 5}), 1);
  EXPECT_EQ(ranks_on_a_node({.tensor = 2}, {4, 4}), 2);
  EXPECT_EQ(ranks_on_a_node({.context = 4}, {4, 4}), 1);
  EXPECT_EQ(ranks_on_a_node({}, {4, 4}, ReshardAfterForward{2}), 2);
}

TEST(Strategy, ATensorAxisIsInnermost) {
  EXPECT_EQ(shape(hybrid_shard, {4, 4}, 0, 0, 2), "replicate=2 x shard=2 x tensor=2");
  EXPECT_EQ(shape(full_shard, {4, 4}, 0, 0, 2), "replicate=1 x shard=4 x tensor=2");
  EXPECT_EQ(shape(no_shard, {4, 4}, 0, 0, 4), "replicate=2 x shard=1 x tensor=4");
  EXPECT_EQ(shape(hybrid_shard, {8}, 1, 4, 2), "replicate=1 x shard=4 x tensor=2");
  EXPECT_NE(refusal(full_shard, {3, 3}, 0, 0, 4).find("mesh.axes.tensor is 4"), std::string::npos);
  EXPECT_NE(refusal(full_shard, {2, 2}, 0, 0, 4).find("tensor axis of 4 ranks would cross nodes"),
            std::string::npos);
  EXPECT_NE(refusal(hybrid_shard, {4, 4}, 1, 4, 2).find("shard axis of 4 ranks would cross nodes"),
            std::string::npos);
  EXPECT_NE(refusal(hybrid_shard, {4}, 2, 2, 2).find("x tensor=2 needs 8 ranks, but there are 4"),
            std::string::npos);
  const comm::MeshOptions across{.tensor = 4, .allow_tensor_across_nodes = true};
  EXPECT_EQ(comm::to_string(mesh_of(full_shard, across, {2, 2})),
            "replicate=1 x shard=1 x tensor=4");
}

/// Returns the mesh for a model with `experts` experts, or the error.
std::string expert_shape(Strategy strategy, const comm::MeshOptions& options,
                         const std::vector<int>& per_node, std::int64_t experts = 8) {
  model::ModelConfig config;
  config.family = experts > 0 ? "mixtral" : "llama";
  config.num_experts = experts;
  config.num_experts_per_tok = experts > 0 ? 2 : 0;
  const auto table = model::parameter_table(config.resolved());
  try {
    return comm::to_string(make_mesh(strategy, ReshardAfterForward::by_strategy, SplitByNode::no,
                                     options, machines(per_node), table));
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::bad_input);
    return e.what();
  }
}

TEST(Strategy, AnExpertAxisIsTakenOutOfTheShards) {
  EXPECT_EQ(expert_shape(full_shard, {.expert = 4}, {8}), "replicate=1 x shard=2 x expert=4");
  EXPECT_EQ(expert_shape(hybrid_shard, {.expert = 2}, {4, 4}), "replicate=2 x shard=2 x expert=2");
  EXPECT_EQ(expert_shape(no_shard, {.expert = 4}, {8}), "replicate=2 x shard=1 x expert=4");
  EXPECT_EQ(expert_shape(full_shard, {.expert = 2, .tensor = 2}, {8}),
            "replicate=1 x shard=2 x expert=2 x tensor=2");
  EXPECT_EQ(expert_shape(full_shard, {.expert = 8, .allow_expert_across_nodes = true}, {4, 4}),
            "replicate=1 x shard=1 x expert=8");
}

TEST(Strategy, AContextAxisLiesBetweenExpertAndTensor) {
  EXPECT_EQ(expert_shape(full_shard, {.context = 4}, {8}), "replicate=1 x shard=2 x context=4");
  EXPECT_EQ(expert_shape(hybrid_shard, {.context = 2}, {4, 4}),
            "replicate=2 x shard=2 x context=2");
  EXPECT_EQ(expert_shape(no_shard, {.context = 4}, {8}), "replicate=2 x shard=1 x context=4");
  EXPECT_EQ(expert_shape(full_shard, {.expert = 2, .context = 2, .tensor = 2}, {8}),
            "replicate=1 x shard=1 x expert=2 x context=2 x tensor=2");
  // It may cross nodes.
  EXPECT_EQ(expert_shape(full_shard, {.context = 8}, {4, 4}), "replicate=1 x shard=1 x context=8");
  EXPECT_EQ(expert_shape(full_shard, {.context = 3}, {8}),
            "mesh.axes.context is 3, which does not divide the 8 ranks; change one of them");
}

TEST(Strategy, StagesLieBetweenReplicasAndShards) {
  const auto mesh = [](Strategy strategy, comm::MeshOptions options,
                       const std::vector<int>& per_node) {
    return comm::to_string(mesh_of(strategy, options, per_node));
  };
  EXPECT_EQ(mesh(hybrid_shard, {.pipeline = 2}, {4, 4, 4, 4}),
            "replicate=2 x pipeline=2 x shard=4");
  EXPECT_EQ(mesh(hybrid_shard, {.pipeline = 4}, {4, 4}), "replicate=1 x pipeline=4 x shard=2");
  EXPECT_EQ(mesh(full_shard, {.pipeline = 2, .tensor = 2}, {4, 4}),
            "replicate=1 x pipeline=2 x shard=2 x tensor=2");
  EXPECT_EQ(mesh(no_shard, {.pipeline = 2}, {4}), "replicate=2 x pipeline=2 x shard=1");
  EXPECT_EQ(test::error_of([&] { mesh(full_shard, {.pipeline = 3}, {4}); }),
            "mesh.axes.pipeline is 3, which does not divide the 4 ranks; change one of them");
}

TEST(Strategy, AnExpertAxisThatDoesNotFitIsRefused) {
  EXPECT_EQ(expert_shape(full_shard, {.expert = 4}, {8}, 0),
            "mesh.axes.expert is 4, but the model has no experts; leave it out");
  EXPECT_EQ(expert_shape(full_shard, {.expert = 3}, {6}),
            "mesh.axes.expert is 3, which does not divide the 8 experts; use one of 1, 2, 4, 8");
  EXPECT_EQ(expert_shape(full_shard, {.expert = 4}, {6}),
            "mesh.axes.expert is 4, which does not divide the 6 ranks; change one of them");
  EXPECT_EQ(expert_shape(full_shard, {.expert = 4, .tensor = 2}, {4}),
            "mesh.axes.expert is 4, which does not divide the 2 ranks (of 4) that the other axes "
            "leave; change one of them");
  EXPECT_EQ(expert_shape(full_shard, {.expert = 8}, {4, 4}),
            "an expert axis of 8 ranks would cross nodes (8 ranks on 2 nodes, 4 on the first); use "
            "a size that divides the ranks of a node, or set mesh.allow_expert_across_nodes");
  EXPECT_NE(expert_shape(hybrid_shard, {.shard = 4, .allow_expert_across_nodes = true}, {2, 2})
                .find("a shard axis of 4 ranks would cross nodes"),
            std::string::npos);
  EXPECT_NE(expert_shape(hybrid_shard, {.shard = 4, .expert = 2}, {4, 4})
                .find("a shard axis of 8 ranks would cross nodes"),
            std::string::npos);
}

TEST(Strategy, GroupsOfRanksSplitTheirAxes) {
  const auto mesh = mesh_of(full_shard, {.tensor = 4}, {16}, ReshardAfterForward{2});
  EXPECT_EQ(comm::to_string(mesh), "replicate=1 x shard=4 x tensor=4");
  EXPECT_EQ(mesh.group(mesh.inner("shard"), 0), (std::vector<int>{0, 4}));
  EXPECT_EQ(mesh.group(mesh.inner("tensor"), 0), (std::vector<int>{0, 1})) << "4 ranks, 2 kv heads";
}

TEST(Strategy, MisfitsNameTheNumbers) {
  EXPECT_NE(refusal(hybrid_shard, {4}, 3, 2).find("needs 6 ranks, but there are 4"),
            std::string::npos);
  EXPECT_NE(refusal(hybrid_shard, {4}, 1'073'741'825, 4).find("has more ranks than MPI can"),
            std::string::npos);
  EXPECT_NE(refusal(hybrid_shard, {2, 1}, 0, 0).find("3 ranks are on 2 nodes"), std::string::npos);
  EXPECT_NE(refusal(hybrid_shard, {2, 2}, 1, 4).find("shard axis of 4 ranks would cross nodes"),
            std::string::npos);
  EXPECT_NE(refusal(full_shard, {4}, 2, 2).find("use hybrid_shard"), std::string::npos);
  EXPECT_NE(refusal(no_shard, {4}, 0, 2).find("use hybrid_shard"), std::string::npos);
  EXPECT_NE(refusal(full_shard, {4}, 0, 3).find("there are 4"), std::string::npos);
}

TEST(Strategy, Resharding) {
  EXPECT_EQ(reshard_of(full_shard), Reshard::after_forward);
  EXPECT_EQ(reshard_of(hybrid_shard), Reshard::after_forward);
  EXPECT_EQ(reshard_of(shard_grad_op), Reshard::after_backward);
  EXPECT_EQ(reshard_of(hybrid_shard_zero2), Reshard::after_backward);
}

// As in torch's fully_shard, an int is the size of the mesh that parameters are resharded to.
TEST(Strategy, ReshardAfterForwardIsFsdp2s) {
  using enum ReshardAfterForward;
  for (const auto strategy : {full_shard, shard_grad_op, hybrid_shard, hybrid_shard_zero2}) {
    EXPECT_EQ(reshard_of(strategy, by_strategy, 8), reshard_of(strategy));
    EXPECT_EQ(reshard_of(strategy, yes, 8), Reshard::after_forward);
    EXPECT_EQ(reshard_of(strategy, no, 8), Reshard::after_backward);
    EXPECT_EQ(reshard_of(strategy, ReshardAfterForward{1}, 8), Reshard::after_backward);
    EXPECT_EQ(reshard_of(strategy, ReshardAfterForward{2}, 8), Reshard::to_group);
    EXPECT_EQ(reshard_of(strategy, ReshardAfterForward{4}, 8), Reshard::to_group);
    EXPECT_EQ(reshard_of(strategy, ReshardAfterForward{8}, 8), Reshard::after_forward);
    EXPECT_EQ(reshard_of(strategy, ReshardAfterForward{1}, 1), Reshard::after_backward);
  }
  EXPECT_EQ(reshard_of(no_shard, by_strategy, 1), Reshard::after_backward);
}

TEST(Strategy, ReshardAfterForwardThatDoesNotFitNamesTheNumbers) {
  const auto error = [](Strategy strategy, int ranks, int shard) {
    return test::error_of([&] { reshard_of(strategy, ReshardAfterForward{ranks}, shard); });
  };
  EXPECT_EQ(error(full_shard, 3, 8),
            "sharding.reshard_after_forward is 3, which does not divide the 8 ranks of the shard "
            "axis; use one of true, false, 2, 4");
  EXPECT_EQ(error(hybrid_shard, 4, 2),
            "sharding.reshard_after_forward is 4, which does not divide the 2 ranks of the shard "
            "axis; use one of true, false");
  for (const int any : {0, 1, 2})
    EXPECT_EQ(error(no_shard, any, 1),
              "sharding.reshard_after_forward is set, but no_shard has every parameter on every "
              "rank; leave it out or use another strategy");
}

// MiCS: the state is sharded over part of a node, with several replicas per node.
TEST(Strategy, AHybridsShardAxisMayBeAPartOfANode) {
  EXPECT_EQ(shape(hybrid_shard, {4, 4}, 0, 2), "replicate=4 x shard=2");
  EXPECT_EQ(shape(hybrid_shard_zero2, {8}, 4), "replicate=4 x shard=2");
  EXPECT_NE(refusal(hybrid_shard, {3, 3}, 0, 2).find("shard axis of 2 ranks would cross nodes"),
            std::string::npos);
}

}  // namespace
}  // namespace llamesh::sharding
