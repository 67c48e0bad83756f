#include "core/box.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace llamesh {
namespace {

/// Returns the array elements in a range, one by one: the slow way.
std::vector<std::int64_t> elements(const Shape& array, const BoxRange& range) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = range.begin; i < range.begin + range.count; ++i) {
    std::int64_t rest = i;
    std::int64_t element = 0;
    std::int64_t stride = 1;
    for (std::size_t d = array.size(); d-- > 0;) {
      element += (range.box.begin[d] + rest % range.box.shape[d]) * stride;
      rest /= range.box.shape[d];
      stride *= array[d];
    }
    all.push_back(element);
  }
  return all;
}

struct Case {
  Shape array;
  std::vector<Box> boxes;
};

const std::vector<Case> cases = {
    {{7}, {{{0}, {7}}, {{2}, {4}}}},
    {{6, 8}, {{{0, 0}, {6, 8}}, {{2, 0}, {3, 8}}, {{0, 3}, {6, 4}}, {{1, 5}, {4, 3}}}},
    {{3, 4, 5},
     {{{0, 0, 0}, {3, 4, 5}},
      {{1, 0, 0}, {2, 4, 5}},
      {{0, 1, 0}, {3, 2, 5}},
      {{1, 2, 1}, {2, 2, 3}}}},
};

/// Calls test(array, range) for all ranges in all boxes.
template <class Test>
void for_all(const Test& test) {
  for (const auto& [array, boxes] : cases)
    for (const auto& box : boxes)
      for (std::int64_t begin = 0; begin < box.numel(); ++begin)
        for (std::int64_t count = 0; begin + count <= box.numel(); ++count)
          test(array, BoxRange{box, begin, count});
}

TEST(Box, RunsAreTheElementsInOrder) {
  for_all([](const Shape& array, const BoxRange& range) {
    std::vector<std::int64_t> seen;
    for_each_run(array, range, [&](std::int64_t begin, std::int64_t at, std::int64_t count) {
      ASSERT_EQ(at, std::ssize(seen));
      ASSERT_GT(count, 0);
      for (std::int64_t i = 0; i < count; ++i) seen.push_back(begin + i);
    });
    ASSERT_EQ(seen, elements(array, range));
  });
}

TEST(Box, ARangeOfAWholeArrayIsOneRun) {
  int runs = 0;
  for_each_run({6, 8}, {Box::whole({6, 8}), 5, 30}, [&](auto, auto, auto) { ++runs; });
  EXPECT_EQ(runs, 1);
}

TEST(Box, BoxesAreTheElementsInOrderAndFew) {
  for_all([](const Shape& array, const BoxRange& range) {
    std::vector<std::int64_t> seen;
    std::size_t boxes = 0;
    for_each_box(range, [&](const Box& box, std::int64_t at) {
      ++boxes;
      ASSERT_EQ(at, std::ssize(seen));
      const auto in_it = elements(array, {box, 0, box.numel()});
      seen.insert(seen.end(), in_it.begin(), in_it.end());
    });
    ASSERT_EQ(seen, elements(array, range));
    ASSERT_LE(boxes, 2 * array.size() - 1) << "the rest of a line and the begin of one in each dim";
  });
}

TEST(Box, SharedElementsAreThoseOfBoth) {
  for (const auto& [array, boxes] : cases)
    for (const auto& a : boxes)
      for (const auto& b : boxes)
        for (const std::int64_t begin : {0, 1, 3})
          for (const std::int64_t cut : {0, 2, 5}) {
            const BoxRange first{a, begin, std::max<std::int64_t>(0, a.numel() - begin - cut)};
            const BoxRange second{b, cut, std::max<std::int64_t>(0, b.numel() - cut - begin)};
            const auto of_first = elements(array, first);
            const auto of_second = elements(array, second);
            std::multiset<std::int64_t> seen;
            for_each_shared(first, second, [&](std::int64_t x, std::int64_t y, std::int64_t count) {
              for (std::int64_t i = 0; i < count; ++i) {
                ASSERT_EQ(of_first.at(static_cast<std::size_t>(x + i)),
                          of_second.at(static_cast<std::size_t>(y + i)));
                seen.insert(of_first[static_cast<std::size_t>(x + i)]);
              }
            });
            std::multiset<std::int64_t> expected;
            for (const auto element : of_first)
              if (std::ranges::find(of_second, element) != of_second.end())
                expected.insert(element);
            ASSERT_EQ(seen, expected);
            if (!expected.empty()) {
              EXPECT_TRUE(shares_rows(first, second));
              EXPECT_TRUE(overlap(a, b));
            }
          }
}

TEST(Box, BoxesOverlapWhereTheyShareAnElement) {
  EXPECT_FALSE(overlap({{0, 0}, {6, 4}}, {{0, 4}, {6, 4}}));
  EXPECT_FALSE(overlap({{0, 0}, {3, 8}}, {{3, 0}, {3, 8}}));
  EXPECT_TRUE(overlap({{0, 0}, {4, 5}}, {{3, 4}, {3, 4}}));
}

}  // namespace
}  // namespace llamesh
