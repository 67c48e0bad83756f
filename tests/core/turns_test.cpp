#include "core/turns.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace llamesh::test {
namespace {

TEST(Turns, TakeTurnsBetweenMeetings) {
  Turns turns(3);
  for (int time = 0; time < 2; ++time) {
    std::string order;
    const std::function<void()> bar = [&] { order += '|'; }, none;
    turns.run([&](int turn) {
      order += std::to_string(turn);
      turns.meet(turn == 2 ? bar : none);
      order += std::to_string(turn);
      turns.meet(turn == 1 ? bar : none);
      order += std::to_string(turn);
    });
    EXPECT_EQ(order, "012|01|2012");
  }
}

TEST(Turns, OneNeedsNoCompany) {
  Turns turns(1);
  std::vector<int> seen;
  turns.run([&](int turn) {
    turns.meet([&] { seen.push_back(7); });
    seen.push_back(turn);
  });
  EXPECT_EQ(seen, (std::vector{7, 0}));
}

/// Counts those that have been destroyed.
struct Counted {
  explicit Counted(int& destroyed) : destroyed(destroyed) {}
  ~Counted() { ++destroyed; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  int& destroyed;
};

TEST(Turns, EndTogetherIfOneFails) {
  for (const int failing : {0, 1, 2})
    for (const bool at_once : {true, false}) {
      Turns turns(3);
      int destroyed = 0, entered = 0, beyond = 0;
      EXPECT_THROW(turns.run([&](int turn) {
        ++entered;
        const Counted counted(destroyed);
        if (!at_once) turns.meet({});
        if (turn == failing) throw std::runtime_error("failed");
        turns.meet({});
        ++beyond;
      }),
                   std::runtime_error);
      EXPECT_EQ(destroyed, entered);
      EXPECT_EQ(beyond, 0);
      int runs = 0;
      turns.run([&](int /*turn*/) { ++runs; });
      EXPECT_EQ(runs, 3) << "after a failure";
    }
}

/// Meets the others when it is destroyed.
struct MeetsAtEnd {
  ~MeetsAtEnd() { turns.meet({}, Turns::IfFailed::returns); }
  Turns& turns;
};

TEST(Turns, LeaveDestructorsBeforeTheyEnd) {
  Turns turns(3);
  int behind = 0, beyond = 0;
  EXPECT_THROW(turns.run([&](int turn) {
    if (turn == 2) throw std::runtime_error("failed");
    { const MeetsAtEnd at_end{turns}; }
    ++behind;
    turns.meet({});
    ++beyond;
  }),
               std::runtime_error);
  EXPECT_EQ(behind, 2);
  EXPECT_EQ(beyond, 0);
}

TEST(Turns, FailWithWhatTheyDoFirst) {
  Turns turns(2);
  int beyond = 0;
  EXPECT_THROW(turns.run([&](int /*turn*/) {
    turns.meet([] { throw std::runtime_error("first"); });
    ++beyond;
  }),
               std::runtime_error);
  EXPECT_EQ(beyond, 0);
}

TEST(Turns, HaveTheirOwnStacks) {
  Turns turns(4);
  std::vector<int> sums(4);
  turns.run([&](int turn) {
    std::vector<int> local(100, turn);
    int array[1000];
    for (int i = 0; i < 1000; ++i) array[i] = turn;
    for (int i = 0; i < 5; ++i) turns.meet({});
    for (const int value : array) sums[static_cast<std::size_t>(turn)] += value;
    for (const int value : local) sums[static_cast<std::size_t>(turn)] += value;
  });
  EXPECT_EQ(sums, (std::vector{0, 1100, 2200, 3300}));
}

}  // namespace
}  // namespace llamesh::test
