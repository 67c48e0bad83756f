#include "sharding/mesh_expert_parallel.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "support.hpp"

namespace llamesh::sharding {
namespace {

constexpr std::int64_t per_rank = 2;  // experts
constexpr std::int64_t num_tokens = 7, k = 3, width = 5;

std::int64_t experts() {
  return per_rank * test::world().size();
}

/// A rule for the expert that a rank's slot goes to.
using Choice = std::int64_t (*)(int rank, std::int64_t slot);
std::int64_t evenly(int rank, std::int64_t slot) {
  return (slot + rank) % experts();
}
std::int64_t to_the_last(int /*rank*/, std::int64_t /*slot*/) {
  return experts() - 1;
}
std::int64_t unevenly(int rank, std::int64_t slot) {
  return (slot * slot + 3 * rank) % experts() / (1 + slot % 2);
}

/// A value that says where it comes from. Exact in fp32.
float value_of(int rank, std::int64_t slot, std::int64_t column) {
  return static_cast<float>(1000 * rank + 10 * slot + column);
}

/// A layer's rows on this rank, and what they were made of.
struct Rows {
  explicit Rows(Choice choice)
      : chosen(num_tokens * k), starts(experts() + 1), slots(num_tokens * k), places(slots) {
    for (std::int64_t s = 0; s < num_tokens * k; ++s)
      chosen[static_cast<std::size_t>(s)] =
          static_cast<std::int32_t>(choice(test::world().rank(), s));
    rows.order = {.starts = view(starts), .slots = view(slots), .places = view(places)};
    ops::sort_by_expert(device::compute_stream(), rows.order, view(chosen));
  }
  static Tensor view(std::vector<std::int32_t>& numbers) {
    return {numbers.data(), DType::i32, {std::ssize(numbers)}};
  }

  std::vector<std::int32_t> chosen, starts, slots, places;
  model::ExpertRows rows;
};

/// Returns the rows that this rank's experts take, in order, by (rank, slot).
std::vector<std::pair<int, std::int64_t>> expected_rows(Choice choice) {
  std::vector<std::pair<int, std::int64_t>> all;
  const auto first = per_rank * test::world().rank();
  for (auto e = first; e < first + per_rank; ++e)
    for (int rank = 0; rank < test::world().size(); ++rank)
      for (std::int64_t s = 0; s < num_tokens * k; ++s)
        if (choice(rank, s) == e) all.emplace_back(rank, s);
  return all;
}

class MeshExpertParallelTest : public testing::Test {
 protected:
  comm::DeviceMesh mesh_{test::world(), comm::discover_topology(test::world(), 0),
                         comm::ParallelDims({{"expert", test::world().size()}})};
  MeshExpertParallel ranks_{mesh_.axis("expert"), experts()};
};

// Buffers that have grown for one choice serve the next one.
TEST_F(MeshExpertParallelTest, RowsGoToTheirExpertsAndComeBack) {
  for (const auto choice : {evenly, unevenly, to_the_last, evenly}) {
    Rows here(choice);
    ranks_.exchange_counts(here.rows);
    const auto expected = expected_rows(choice);
    ASSERT_EQ(here.rows.count, std::ssize(expected));
    const auto starts = here.rows.starts.span<std::int32_t>();
    EXPECT_EQ(starts.front(), 0);
    EXPECT_EQ(starts.back(), here.rows.count);

    std::vector<float> x(num_tokens * k * width), taken(expected.size() * width);
    for (std::int64_t s = 0; s < num_tokens * k; ++s)
      for (std::int64_t c = 0; c < width; ++c)
        x[static_cast<std::size_t>(s * width + c)] = value_of(test::world().rank(), s, c);
    const Tensor to(taken.data(), DType::f32, {here.rows.count, width});
    ranks_.dispatch(here.rows, to, Tensor(x.data(), DType::f32, {num_tokens * k, width}));
    for (std::size_t i = 0; i < expected.size(); ++i)
      for (std::int64_t c = 0; c < width; ++c)
        ASSERT_EQ(taken[i * width + static_cast<std::size_t>(c)],
                  value_of(expected[i].first, expected[i].second, c))
            << "row " << i;

    const auto back = ranks_.collect(here.rows, to);
    for (std::int64_t i = 0; i < num_tokens * k; ++i)
      for (std::int64_t c = 0; c < width; ++c)
        ASSERT_EQ(back.as<float>()[i * width + c],
                  value_of(test::world().rank(), here.slots[static_cast<std::size_t>(i)], c))
            << "row " << i;
  }
}

// x has a row for each token, which k experts take.
TEST_F(MeshExpertParallelTest, ATokenGoesToEachOfItsExperts) {
  Rows here(evenly);
  ranks_.exchange_counts(here.rows);
  const auto expected = expected_rows(evenly);
  std::vector<float> x(num_tokens), taken(expected.size());
  std::iota(x.begin(), x.end(), static_cast<float>(100 * test::world().rank()));
  ranks_.dispatch(here.rows, Tensor(taken.data(), DType::f32, {here.rows.count, 1}),
                  Tensor(x.data(), DType::f32, {num_tokens, 1}));
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_EQ(taken[i], static_cast<float>(100 * expected[i].first + expected[i].second / k));
}

}  // namespace
}  // namespace llamesh::sharding
