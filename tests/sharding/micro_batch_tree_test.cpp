#include "sharding/micro_batch_tree.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace llamesh::sharding {
namespace {

/// Returns how a step's micro-batches are added, in parentheses.
std::string added(std::int64_t micro_batches) {
  std::vector<std::string> sums(static_cast<std::size_t>(tree_sums(micro_batches)));
  const auto add = [](std::string& sum, const std::string& addend) {
    sum = "(" + sum + "+" + addend + ")";
  };
  for (std::int64_t i = 0; i < micro_batches; ++i) {
    const auto place = tree_place(i);
    auto at = static_cast<std::size_t>(place.sum);
    if (place.adds)
      add(sums.at(at), std::to_string(i));
    else
      sums.at(at) = std::to_string(i);
    for (int carry = 0; carry < place.carries; ++carry, --at) add(sums.at(at - 1), sums[at]);
  }
  return sums.front();
}

TEST(MicroBatchTree, IsBalanced) {
  EXPECT_EQ(added(1), "0");
  EXPECT_EQ(added(2), "(0+1)");
  EXPECT_EQ(added(4), "((0+1)+(2+3))");
  EXPECT_EQ(added(16), "((((0+1)+(2+3))+((4+5)+(6+7)))+(((8+9)+(10+11))+((12+13)+(14+15))))");
}

TEST(MicroBatchTree, NeedsTheLogarithmOfSums) {
  EXPECT_EQ(tree_sums(1), 1);
  EXPECT_EQ(tree_sums(2), 1);
  EXPECT_EQ(tree_sums(16), 4);
}

}  // namespace
}  // namespace llamesh::sharding
