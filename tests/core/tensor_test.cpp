#include "core/tensor.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace llamesh {
namespace {

/// The numbers 0 to 59 as (3, 4, 5).
class TensorTest : public testing::Test {
 protected:
  TensorTest() { std::iota(numbers.begin(), numbers.end(), 0.0F); }
  std::vector<float> numbers = std::vector<float>(60);
  Tensor cube{numbers.data(), DType::f32, {3, 4, 5}};
};

/// Runs an action that must be a bug; returns its error text.
template <class Action>
std::string bug_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::internal_error);
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

float at(const Tensor& matrix, std::int64_t row, std::int64_t col) {
  return matrix.as<float>()[row * matrix.row_stride() + col];
}

TEST_F(TensorTest, KnowsItsShape) {
  EXPECT_TRUE(cube);
  EXPECT_EQ(cube.dims(), 3);
  EXPECT_EQ(cube.size(0), 3);
  EXPECT_EQ(cube.size(2), 5);
  EXPECT_EQ(cube.numel(), 60);
  EXPECT_EQ(cube.bytes(), 240);
  EXPECT_EQ(cube.rows(), 12);
  EXPECT_EQ(cube.cols(), 5);
  EXPECT_EQ(cube.row_stride(), 5);
  EXPECT_TRUE(cube.dense());
}

TEST_F(TensorTest, DefaultIsEmpty) {
  const Tensor none;
  EXPECT_FALSE(none);
  EXPECT_EQ(none.numel(), 0);
  EXPECT_EQ(none.rows(), 0);
  EXPECT_EQ(none.cols(), 0);
  EXPECT_EQ(none.bytes(), 0);
}

TEST_F(TensorTest, MayHaveNoElements) {
  const Tensor empty(numbers.data(), DType::f32, {4, 0});
  EXPECT_EQ(empty.numel(), 0);
  EXPECT_EQ(empty.rows(), 0);
  EXPECT_EQ(cube.slice_rows(12, 0).numel(), 0);
  EXPECT_EQ(cube.slice(60, 0).numel(), 0);
}

TEST_F(TensorTest, SliceRowsIsAMatrixOfTheFlattenedRows) {
  const Tensor rows = cube.slice_rows(2, 7);
  EXPECT_EQ(rows.dims(), 2);
  EXPECT_EQ(rows.rows(), 7);
  EXPECT_EQ(rows.cols(), 5);
  EXPECT_EQ(at(rows, 0, 0), 10.0F);
  EXPECT_EQ(at(rows, 6, 4), 44.0F);
  EXPECT_TRUE(rows.dense());
}

TEST_F(TensorTest, SliceColsKeepsTheRowStride) {
  const Tensor cols = cube.slice_cols(1, 3);
  EXPECT_EQ(cols.rows(), 12);
  EXPECT_EQ(cols.cols(), 3);
  EXPECT_EQ(cols.row_stride(), 5);
  EXPECT_EQ(cols.numel(), 36);
  EXPECT_FALSE(cols.dense());
  EXPECT_EQ(at(cols, 0, 0), 1.0F);
  EXPECT_EQ(at(cols, 11, 2), 58.0F);
}

TEST_F(TensorTest, SlicesOfSlicesLieWhereTheyShould) {
  const Tensor part = cube.slice_cols(1, 4).slice_rows(3, 5).slice_cols(2, 2);
  EXPECT_EQ(part.rows(), 5);
  EXPECT_EQ(part.row_stride(), 5);
  EXPECT_EQ(at(part, 0, 0), 18.0F);
  EXPECT_EQ(at(part, 4, 1), 39.0F);
  EXPECT_TRUE(part.slice_rows(2, 1).dense()) << "one row is dense whatever its stride";
}

TEST_F(TensorTest, SliceIsFlat) {
  const Tensor part = cube.slice(13, 9);
  EXPECT_EQ(part.dims(), 1);
  EXPECT_EQ(part.span<float>().front(), 13.0F);
  EXPECT_EQ(part.span<float>().size(), 9U);
}

TEST_F(TensorTest, SlicesCountInTheirDtype) {
  std::vector<bf16> halves(20);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = bf16(static_cast<float>(i));
  const Tensor matrix(halves.data(), DType::bf16, {4, 5});
  EXPECT_EQ(matrix.bytes(), 40);
  EXPECT_EQ(static_cast<float>(*matrix.slice_rows(2, 1).as<bf16>()), 10.0F);
  EXPECT_EQ(static_cast<float>(*matrix.slice_cols(3, 1).as<bf16>()), 3.0F);
  EXPECT_EQ(static_cast<float>(*matrix.slice(7, 1).as<bf16>()), 7.0F);
}

TEST_F(TensorTest, ReshapeKeepsTheNumbers) {
  const Tensor flat = cube.reshape({60});
  EXPECT_EQ(flat.data(), cube.data());
  EXPECT_EQ(flat.cols(), 60);
  const Tensor matrix = cube.reshape({6, 10});
  EXPECT_EQ(at(matrix, 5, 9), 59.0F);
  EXPECT_EQ(matrix.row_stride(), 10);
}

TEST_F(TensorTest, WritesThroughItsViews) {
  const auto row = cube.slice_rows(1, 1).span<float>();
  row[2] = -1.0F;
  EXPECT_EQ(numbers[7], -1.0F);
}

TEST_F(TensorTest, RefusesWhatLiesOutside) {
  EXPECT_NE(bug_of([&] { cube.slice_rows(10, 3); }).find("rows [10, 13) of 12"), std::string::npos);
  EXPECT_NE(bug_of([&] { cube.slice_cols(-1, 2); }).find("columns [-1, 1) of 5"),
            std::string::npos);
  EXPECT_NE(bug_of([&] { cube.slice(58, 3); }).find("elements [58, 61) of 60"), std::string::npos);
  bug_of([&] { cube.slice_rows(-1, 1); });
  bug_of([&] { cube.slice_rows(3, -1); });
  bug_of([&] { cube.slice_cols(4, 2); });
  bug_of([&] { cube.slice(-1, 3); });
  bug_of([&] { Tensor(numbers.data(), DType::f32, {}); });
  bug_of([&] { Tensor(numbers.data(), DType::f32, {1, 1, 1, 1, 1}); });
}

TEST_F(TensorTest, RefusesOtherNumels) {
  EXPECT_NE(bug_of([&] {
              cube.reshape({7, 9});
            }).find("60 elements cannot take 63"),
            std::string::npos);
}

TEST_F(TensorTest, RefusesFlatViewsOfStridedRows) {
  const Tensor cols = cube.slice_cols(1, 3);
  bug_of([&] { cols.slice(0, 3); });
  bug_of([&] { cols.reshape({36}); });
  bug_of([&] { cols.span<float>(); });
}

TEST_F(TensorTest, RefusesAnotherType) {
  EXPECT_NE(bug_of([&] { cube.as<bf16>(); }).find("tensor holds fp32, not bf16"),
            std::string::npos);
  bug_of([&] { cube.span<std::int32_t>(); });
}

}  // namespace
}  // namespace llamesh
