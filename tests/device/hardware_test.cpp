#include "device/hardware.hpp"

#include <gtest/gtest.h>

namespace llamesh::device {
namespace {

TEST(RateTable, InterpolatesLogarithms) {
  const RateTable table{{{10, 1e9}, {1000, 4e9}}};
  EXPECT_DOUBLE_EQ(table.at(10), 1e9);
  EXPECT_DOUBLE_EQ(table.at(100), 2e9);
  EXPECT_DOUBLE_EQ(table.at(1000), 4e9);
}

TEST(RateTable, SmallSizesTakeTheTimeOfTheFirstAndLargeOnesTheLastRate) {
  const RateTable table{{{10, 1e9}, {1000, 4e9}}};
  EXPECT_DOUBLE_EQ(1 / table.at(1), 10 / table.at(10));
  EXPECT_DOUBLE_EQ(table.at(1e6), 4e9);
  const RateTable single{{{10, 1e9}}};
  EXPECT_DOUBLE_EQ(single.at(5), 5e8);
  EXPECT_DOUBLE_EQ(single.at(20), 1e9);
}

}  // namespace
}  // namespace llamesh::device
