#include "comm/mesh/parallel_dims.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "support.hpp"

namespace llamesh::comm {
namespace {

const ParallelDims dims({{"replicate", 2}, {"shard", 3}, {"tensor", 4}});

TEST(ParallelDims, CoordinatesAreRowMajor) {
  EXPECT_EQ(dims.ranks(), 24);
  EXPECT_EQ(dims.coordinates(0), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(dims.coordinates(1), (std::vector<int>{0, 0, 1}));
  EXPECT_EQ(dims.coordinates(23), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(dims.coordinates(17), (std::vector<int>{1, 1, 1}));
  EXPECT_EQ(to_string(dims), "replicate=2 x shard=3 x tensor=4");
}

TEST(ParallelDims, AGroupDiffersInItsAxesOnly) {
  EXPECT_EQ(dims.group(dims.named({"tensor"}), 17), (std::vector<int>{16, 17, 18, 19}));
  EXPECT_EQ(dims.group(dims.named({"replicate"}), 17), (std::vector<int>{5, 17}));
  EXPECT_EQ(dims.group(dims.named({"tensor", "replicate"}), 17),
            (std::vector<int>{4, 5, 6, 7, 16, 17, 18, 19}));
  EXPECT_EQ(dims.group(AxisSet(), 17), std::vector<int>{17});
  EXPECT_EQ(dims.group(dims.named({"expert"}), 17), std::vector<int>{17}) << "an axis not there";
}

/// Every subset of the axes partitions the ranks into groups: each rank is in one, at its index.
TEST(ParallelDims, GroupsArePartitions) {
  for (unsigned long bits = 0; bits < 8; ++bits) {
    const AxisSet along(bits);
    for (int rank = 0; rank < dims.ranks(); ++rank) {
      const auto group = dims.group(along, rank);
      ASSERT_EQ(std::ssize(group), dims.group_size(along));
      EXPECT_TRUE(std::ranges::is_sorted(group));
      EXPECT_EQ(group[static_cast<std::size_t>(dims.rank_in_group(along, rank))], rank);
      for (const int member : group) EXPECT_EQ(dims.group(along, member), group);
    }
  }
}

TEST(ParallelDims, RanksAlongTensorReadTheSameData) {
  EXPECT_EQ(dims.group_size(dims.batch_axes()), 6);
  EXPECT_EQ(dims.rank_in_group(dims.batch_axes(), 16), 4);
  EXPECT_EQ(dims.rank_in_group(dims.batch_axes(), 19), 4);
  const ParallelDims without({{"shard", 3}});
  EXPECT_EQ(without.group_size(without.batch_axes()), 3);
  EXPECT_EQ(ParallelDims().group_size(ParallelDims().batch_axes()), 1);
}

TEST(ParallelDims, AnAxisSaysWhatItDivides) {
  const ParallelDims mesh({{"replicate", 2},
                           {"shard", 2},
                           {"expert", 2},
                           {"context", 2},
                           {"made-up", 2, Divides::sequence},
                           {"tensor", 2}});
  EXPECT_EQ(mesh.batch_axes(), mesh.named({"replicate", "shard", "expert"}));
  EXPECT_TRUE(mesh.apart().none());
  const auto apart = mesh.with_replicas_apart("replicate");
  EXPECT_EQ(apart.apart(), mesh.named({"replicate"}));
  EXPECT_EQ(apart.batch_axes(), mesh.batch_axes());
  EXPECT_EQ(apart.data_axes(), mesh.gradient_axes());
  EXPECT_EQ(apart.gradient_axes(), mesh.gradient_axes() & ~apart.apart());
  EXPECT_EQ(mesh.gradient_axes(), mesh.all() & ~mesh.tensor());
}

TEST(ParallelDims, AnAxisSplitsAgain) {
  const ParallelDims mesh = ParallelDims({{"shard", 8}, {"tensor", 2}}).split("shard", 2);
  const ParallelDims twice = mesh.split("shard", 2);
  const auto shard = twice.named({"shard"}), inner = twice.inner("shard");
  EXPECT_EQ(twice.group(shard, 5), (std::vector<int>{1, 3, 5, 7, 9, 11, 13, 15}));
  EXPECT_EQ(twice.group(shard & ~inner, 5), (std::vector<int>{5, 13}));
  EXPECT_EQ(twice.group(inner, 5), (std::vector<int>{1, 3, 5, 7}));
  EXPECT_EQ(twice.group_size(inner), 4);
  EXPECT_EQ(to_string(twice), "shard=8 x tensor=2");
}

TEST(ParallelDims, AnAxisInTwoFactorsIsStillOneAxis) {
  const ParallelDims split = dims.split("tensor", 2);
  EXPECT_EQ(to_string(split), "replicate=2 x shard=3 x tensor=4");
  EXPECT_EQ(split.ranks(), 24);
  EXPECT_EQ(split.coordinates(17), (std::vector<int>{1, 1, 1}));
  const auto tensor = split.tensor(), inner = split.inner("tensor");
  for (int rank = 0; rank < 24; ++rank)
    EXPECT_EQ(split.group(tensor, rank), dims.group(dims.tensor(), rank));
  EXPECT_EQ(split.group(inner, 17), (std::vector<int>{16, 17}));
  EXPECT_EQ(split.group(tensor & ~inner, 17), (std::vector<int>{17, 19}));
  EXPECT_EQ(split.rank_in_group(tensor & ~inner, 18), 1);
  EXPECT_EQ(to_string(inner, split), "tensor");
  EXPECT_EQ(split.group(split.named({"shard"}), 17), dims.group(dims.named({"shard"}), 17));
  EXPECT_TRUE(dims.inner("tensor").none() && split.inner("shard").none());
  const auto text = test::error_of([] { dims.split("shard", 2); });
  EXPECT_NE(text.find("groups of 2 do not divide the 3 ranks"), std::string::npos) << text;
}

// Neighbors along an axis, also behind the last one.
TEST(ParallelDims, PairsAreNeighborsAlongAnAxis) {
  const ParallelDims even({{"pipeline", 4}, {"shard", 2}});
  const auto first = RankGroups::pairs(even.pipeline(), 0);
  const auto second = RankGroups::pairs(even.pipeline(), 1);
  EXPECT_EQ(even.group(first, 3), (std::vector<int>{1, 3}));
  EXPECT_EQ(even.group(first, 4), (std::vector<int>{4, 6}));
  EXPECT_EQ(even.group(second, 4), (std::vector<int>{2, 4}));
  EXPECT_EQ(even.group(second, 1), (std::vector<int>{7, 1}));
  EXPECT_EQ(even.rank_in_group(second, 7), 0);
  EXPECT_EQ(even.rank_in_group(second, 1), 1);
  EXPECT_EQ(even.group_size(second), 2);
  const ParallelDims odd({{"pipeline", 3}});
  EXPECT_EQ(odd.group(RankGroups::pairs(odd.pipeline(), 0), 2), (std::vector<int>{2}));
  EXPECT_EQ(odd.group(RankGroups::pairs(odd.pipeline(), 1), 0), (std::vector<int>{0}));
  EXPECT_EQ(odd.group(RankGroups::pairs(odd.pipeline(), 2), 0), (std::vector<int>{2, 0}));
  EXPECT_EQ(odd.group(RankGroups::pairs(odd.pipeline(), 2), 1), (std::vector<int>{1}));
  for (const auto& dims : {even, odd})
    for (int shift = 0; shift < dims.group_size(dims.pipeline()); ++shift) {
      const auto pairs = RankGroups::pairs(dims.pipeline(), shift);
      for (int rank = 0; rank < dims.ranks(); ++rank) {
        const auto group = dims.group(pairs, rank);
        EXPECT_EQ(group[static_cast<std::size_t>(dims.rank_in_group(pairs, rank))], rank);
        for (const int member : group) EXPECT_EQ(dims.group(pairs, member), group);
      }
    }
  EXPECT_TRUE((even.gradient_axes() & even.pipeline()).none());
}

TEST(ParallelDims, RefusesWhatIsNoMesh) {
  const auto refused = [](std::vector<MeshAxis> axes, const std::string& why) {
    const auto text = test::error_of([&] { ParallelDims(std::move(axes)); });
    EXPECT_NE(text.find(why), std::string::npos) << text;
  };
  refused({{"shard", 0}}, "axis shard has size 0");
  refused({{"shard", 2}, {"shard", 1}}, "shard is named twice");
  refused({{"a", 1 << 20}, {"b", 1 << 20}}, "more ranks than MPI");
  std::vector<MeshAxis> many;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h", "i"}) many.push_back({name, 1});
  refused(many, "a mesh of 9 axes");
}

}  // namespace
}  // namespace llamesh::comm
