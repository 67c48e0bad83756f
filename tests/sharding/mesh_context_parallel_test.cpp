#include "sharding/mesh_context_parallel.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "support.hpp"

namespace llamesh::sharding {
namespace {

constexpr std::int64_t num_sequences = 2, row_tokens = 6, key_columns = 5, value_columns = 3;

std::int64_t whole_length() {
  return row_tokens * test::world().size();
}

/// A value that says where it belongs. Exact in fp32 and, for small ones, in bf16.
float key_of(std::int64_t b, std::int64_t position, std::int64_t column) {
  return static_cast<float>(1000 * b + 10 * position + column);
}

/// Likewise, in a row with keys and then values.
float value_of(std::int64_t b, std::int64_t position, std::int64_t column) {
  const auto in_values = column - key_columns;
  return in_values < 0 ? key_of(b, position, column) : -key_of(b, position, in_values);
}

/// A dense matrix in fp32.
struct RowMatrix {
  RowMatrix(std::int64_t rows, std::int64_t cols)
      : values(static_cast<std::size_t>(rows * cols)),
        view(values.data(), DType::f32, {rows, cols}) {}
  float& at(std::int64_t row, std::int64_t column) {
    return values[static_cast<std::size_t>(row * view.cols() + column)];
  }
  std::vector<float> values;
  Tensor view;
};

float element(const Tensor& t, std::int64_t row, std::int64_t column) {
  return t.as<float>()[row * t.row_stride() + column];
}

class MeshContextParallelTest : public testing::Test {
 protected:
  /// Fills this rank's rows by their positions, keys and values as columns of one wider matrix.
  void fill() {
    const auto positions = ranks_.positions(row_tokens);
    for (std::int64_t b = 0; b < num_sequences; ++b)
      for (std::int64_t i = 0; i < row_tokens; ++i)
        for (std::int64_t c = 0; c < key_columns + value_columns; ++c)
          qkv_.at(b * row_tokens + i, 3 + c) = value_of(b, positions[i], c);
  }
  model::KeysValues mine() const {
    return {qkv_.view.slice_cols(3, key_columns),
            qkv_.view.slice_cols(3 + key_columns, value_columns)};
  }

  comm::DeviceMesh mesh_{test::world(), comm::discover_topology(test::world(), 0),
                         comm::ParallelDims({{"context", test::world().size()}})};
  MeshContextParallel ranks_{mesh_.axis("context"),
                             {num_sequences, row_tokens, key_columns, value_columns, DType::f32}};
  RowMatrix qkv_{num_sequences * row_tokens, 3 + key_columns + value_columns};
};

TEST_F(MeshContextParallelTest, PositionsAreEachOnOneRank) {
  std::vector<int> holders(static_cast<std::size_t>(whole_length()));
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    const auto positions = model::ContextParallel::positions_of(rank, ranks_.size(), row_tokens);
    std::int64_t causal_keys = 0;
    for (std::int64_t i = 0; i < row_tokens; ++i) {
      ++holders.at(static_cast<std::size_t>(positions[i]));
      causal_keys += positions[i] + 1;
    }
    EXPECT_EQ(causal_keys, row_tokens * (whole_length() + 1) / 2) << "rank " << rank;
  }
  EXPECT_EQ(holders, std::vector<int>(holders.size(), 1));
}

TEST_F(MeshContextParallelTest, GathersSequencesInTrueOrder) {
  fill();
  for (int layer = 0; layer < 3; ++layer) {  // buffers serve all layers in turn
    bool overlapped = false;
    const auto all = ranks_.gather(mine(), [&] { overlapped = true; });
    EXPECT_TRUE(overlapped);
    ASSERT_EQ(all.keys.rows(), num_sequences * whole_length());
    for (std::int64_t b = 0; b < num_sequences; ++b)
      for (std::int64_t p = 0; p < whole_length(); ++p)
        for (std::int64_t c = 0; c < key_columns + value_columns; ++c) {
          const bool key = c < key_columns;
          ASSERT_EQ(element(key ? all.keys : all.values, b * whole_length() + p,
                            key ? c : c - key_columns),
                    value_of(b, p, c));
        }
  }
}

TEST_F(MeshContextParallelTest, AddsUpGradientsForTheOwnersOfTheTokens) {
  const auto gradients = ranks_.gradients(mine());
  const auto factor = static_cast<float>(ranks_.rank() + 1);
  for (std::int64_t b = 0; b < num_sequences; ++b)
    for (std::int64_t p = 0; p < whole_length(); ++p)
      for (std::int64_t c = 0; c < key_columns + value_columns; ++c) {
        const bool key = c < key_columns;
        const Tensor& to = key ? gradients.keys : gradients.values;
        to.as<float>()[(b * whole_length() + p) * to.row_stride() + (key ? c : c - key_columns)] =
            factor * value_of(b, p, c);
      }
  ranks_.reduce(mine(), [] {});
  const auto n = static_cast<float>(ranks_.size());
  const auto all_factors = n * (n + 1) / 2;
  const auto positions = ranks_.positions(row_tokens);
  for (std::int64_t b = 0; b < num_sequences; ++b)
    for (std::int64_t i = 0; i < row_tokens; ++i)
      for (std::int64_t c = 0; c < key_columns + value_columns; ++c)
        ASSERT_EQ(qkv_.at(b * row_tokens + i, 3 + c), all_factors * value_of(b, positions[i], c));
}

TEST_F(MeshContextParallelTest, SendsWhatTheFormulaSays) {
  const auto& collectives = *mesh_.axis("context").collectives;
  const auto before = collectives.bytes_sent();
  fill();
  ranks_.gather(mine(), [] {});
  ranks_.gradients(mine());
  ranks_.reduce(mine(), [] {});
  // docs/strategies.md: rows x K (E + V) elements to each other rank, twice.
  EXPECT_EQ(
      collectives.bytes_sent() - before,
      num_sequences * row_tokens * (key_columns + value_columns) * 4 * 2 * (ranks_.size() - 1));
}

}  // namespace
}  // namespace llamesh::sharding
