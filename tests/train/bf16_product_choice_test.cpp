#include "train/engine/kernel_choice.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "support.hpp"

namespace llamesh::train {
namespace {

using enum ops::Bf16Products;
using test::world;

constexpr double never = std::numeric_limits<double>::infinity();

/// A fixture that restores this process's method.
class Bf16ProductsOfAJob : public testing::Test {
 protected:
  void TearDown() override { ops::use_bf16_products(before_); }

 private:
  ops::Bf16Products before_ = ops::bf16_products();
};

TEST_F(Bf16ProductsOfAJob, AreTheFasterOnesOfAllRanksTogether) {
  EXPECT_EQ(agreed_bf16_products(world(), {.native = 1, .in_fp32 = 2}), native);
  EXPECT_EQ(agreed_bf16_products(world(), {.native = 2, .in_fp32 = 1}), in_fp32);
  const bool last = world().rank() + 1 == world().size();
  EXPECT_EQ(agreed_bf16_products(world(), {.native = last ? 100.0 : 1.0, .in_fp32 = 2}), in_fp32)
      << "one slow rank decides";
}

TEST_F(Bf16ProductsOfAJob, AreNativeOnlyWhereEveryRankHasThem) {
  const bool last = world().rank() + 1 == world().size();
  EXPECT_EQ(agreed_bf16_products(world(), {.native = last ? never : 1.0, .in_fp32 = 2}), in_fp32);
}

TEST_F(Bf16ProductsOfAJob, AreChosenAlikeOnAllRanks) {
  choose_bf16_products(world(), DType::bf16);
  for (const auto& way : world().all_gather(recorded_bf16_products(DType::bf16)))
    EXPECT_EQ(way, name_of(ops::bf16_products()));
}

TEST_F(Bf16ProductsOfAJob, AreNoMatterOfFp32) {
  ops::use_bf16_products(in_fp32);
  choose_bf16_products(world(), DType::f32);
  EXPECT_EQ(ops::bf16_products(), in_fp32);
  EXPECT_EQ(recorded_bf16_products(DType::f32), "");
  EXPECT_FALSE(keep_bf16_products(world(), DType::f32, "native"));
}

TEST_F(Bf16ProductsOfAJob, StayThoseOfTheCheckpoint) {
  ops::use_bf16_products(in_fp32);
  EXPECT_FALSE(keep_bf16_products(world(), DType::bf16, "")) << "not known";
  EXPECT_FALSE(keep_bf16_products(world(), DType::bf16, "fp32"));
  EXPECT_EQ(keep_bf16_products(world(), DType::bf16, "native"), ops::has_native_bf16());
  if (!ops::has_native_bf16()) return;
  EXPECT_EQ(ops::bf16_products(), native);
  EXPECT_TRUE(keep_bf16_products(world(), DType::bf16, "fp32"));
  EXPECT_EQ(ops::bf16_products(), in_fp32);
}

}  // namespace
}  // namespace llamesh::train
