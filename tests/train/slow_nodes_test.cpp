#include "train/preflight/slow_nodes.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace llamesh::train {
namespace {

using Hosts = std::vector<std::string>;

/// Returns the hosts of `count` nodes with `per_node` ranks each: n0, n1, ...
Hosts nodes(int count, int per_node = 1) {
  Hosts hosts;
  for (int rank = 0; rank < count * per_node; ++rank)
    hosts.push_back("n" + std::to_string(rank / per_node));
  return hosts;
}

std::vector<Windows> same_rates(std::size_t ranks, double rate) {
  return std::vector<Windows>(ranks, Windows(5, rate));
}

std::vector<int> ranks_of(const std::vector<SlowRank>& slow) {
  std::vector<int> ranks;
  for (const auto& one : slow) ranks.push_back(one.rank);
  return ranks;
}

TEST(SlowRanks, FindsOneSlowNode) {
  for (const int count : {3, 4, 8})
    for (int slow = 0; slow < count; ++slow) {
      auto rates = same_rates(static_cast<std::size_t>(count), 100);
      rates[static_cast<std::size_t>(slow)] = {40, 45, 50, 41, 30};
      const auto found = slow_ranks(rates, nodes(count));
      ASSERT_EQ(ranks_of(found), std::vector<int>{slow}) << count;
      EXPECT_EQ(found.front().best, 50);
      EXPECT_EQ(found.front().median, 100);
      EXPECT_TRUE(found.front().is_certain);
    }
}

TEST(SlowRanks, CannotTellWhichOfTwoNodesIsUnusual) {
  auto rates = same_rates(2, 100);
  EXPECT_TRUE(slow_ranks(rates, nodes(2)).empty());
  rates[1] = Windows(5, 50);
  const auto found = slow_ranks(rates, nodes(2));
  ASSERT_EQ(ranks_of(found), std::vector<int>{1});
  EXPECT_FALSE(found.front().is_certain);
  EXPECT_TRUE(slow_ranks({{100}, {10}}, {"n0", "n0"}).empty()) << "nothing to compare with";
}

TEST(SlowRanks, ComparesRanksInTheSamePlace) {
  // The second rank on each node has half the memory bandwidth, and on n1 a quarter.
  std::vector<Windows> rates;
  for (const double rate : {100, 50, 100, 25, 100, 50}) rates.push_back(Windows(5, rate));
  EXPECT_EQ(ranks_of(slow_ranks(rates, nodes(3, 2))), std::vector<int>{3});
}

TEST(SlowRanks, TakesTwoModelsOfMachineAsTheyAre) {
  std::vector<Windows> rates;
  for (const double rate : {100, 50, 100, 50}) rates.push_back(Windows(5, rate));
  EXPECT_TRUE(slow_ranks(rates, nodes(4)).empty());
}

TEST(SlowRanks, NeedsEveryWindowToBeSlow) {
  auto rates = same_rates(4, 100);
  rates[2] = {20, 20, 81, 20, 20};
  EXPECT_TRUE(slow_ranks(rates, nodes(4)).empty());
  rates[2] = {20, 20, 79, 20, 20};
  EXPECT_EQ(ranks_of(slow_ranks(rates, nodes(4))), std::vector<int>{2});
}

// Each window gets a random share of the core, as on a busy machine.
TEST(SlowRanks, DoesNotTakeNoiseForSlowness) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> share(0.1, 1);
  int alarms = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    auto rates = same_rates(4, 100);
    for (auto& windows : rates)
      for (auto& rate : windows) rate *= share(random);
    alarms += slow_ranks(rates, nodes(4)).empty() ? 0 : 1;
  }
  EXPECT_LT(alarms, 30) << "of 1000; one in thirty of them would be found twice";
}

/// Returns the links of a ring through the first rank of each host, or the next ranks.
std::vector<LinkRate> ring(const Hosts& hosts, int nodes, double rate) {
  const int per_node = static_cast<int>(hosts.size()) / nodes;
  std::vector<LinkRate> links;
  for (int place = 0; place < per_node; ++place)
    for (const auto& phase : ring_phases(nodes))
      for (const auto& [a, b] : phase)
        links.push_back(
            {"replicate", a * per_node + place, b * per_node + place, Windows(5, rate)});
  return links;
}

/// Slows down the links between these two ranks, or all links of the first one.
void slow_down(std::vector<LinkRate>& links, int first, int second = -1) {
  for (auto& link : links) {
    const std::set<int> ends{link.first, link.second};
    if (ends.contains(first) && (second < 0 || ends.contains(second)))
      link.windows = Windows(5, 20);
  }
}

LinkBlame judge(const std::vector<LinkRate>& links, const Hosts& hosts) {
  return blame_for_links(slow_links(links, hosts), hosts);
}

TEST(SlowLinks, BlamesTheNodeWhoseLinksAreSlow) {
  for (const int count : {3, 4, 5, 8})
    for (const int per_node : {1, 2})
      for (int slow = 0; slow < count; ++slow) {
        const auto hosts = nodes(count, per_node);
        auto links = ring(hosts, count, 100);
        EXPECT_TRUE(slow_links(links, hosts).empty());
        slow_down(links, slow * per_node);
        const auto blame = judge(links, hosts);
        ASSERT_EQ(blame.hosts.size(), 1U) << count << ' ' << slow;
        EXPECT_EQ(blame.hosts.begin()->first, "n" + std::to_string(slow));
        EXPECT_EQ(blame.hosts.begin()->second.size(), 2U);
        EXPECT_TRUE(blame.pairs.empty());
      }
}

TEST(SlowLinks, BlamesNobodyForOneLinkBetweenNodes) {
  for (const int count : {3, 4, 8}) {
    const auto hosts = nodes(count);
    auto links = ring(hosts, count, 100);
    slow_down(links, 1, 2);
    const auto blame = judge(links, hosts);
    EXPECT_TRUE(blame.hosts.empty());
    ASSERT_EQ(blame.pairs.size(), 1U) << count;
    EXPECT_EQ(blame.pairs.front().best, 20);
    EXPECT_EQ(blame.pairs.front().median, 100);
  }
}

TEST(SlowLinks, CannotTellOfTwoNodes) {
  const auto hosts = nodes(2);
  auto links = ring(hosts, 2, 100);
  ASSERT_EQ(links.size(), 1U);
  slow_down(links, 0);
  EXPECT_TRUE(slow_links(links, hosts).empty());
}

TEST(SlowLinks, BlamesTheSlowestOfHostsWithEquallyManySlowLinks) {
  const auto hosts = nodes(3);
  auto links = ring(hosts, 3, 100);
  for (auto& link : links) link.windows = Windows(5, 70);  // noise on the third link
  slow_down(links, 2);
  std::vector<SlowLink> slow;
  for (const auto& link : links) slow.push_back({link, link.windows.front(), 100});
  const auto blame = blame_for_links(slow, hosts);
  ASSERT_EQ(blame.hosts.size(), 1U);
  EXPECT_EQ(blame.hosts.begin()->first, "n2");
  EXPECT_EQ(blame.pairs.size(), 1U);
}

TEST(SlowLinks, BlamesTheHostOfALinkWithinIt) {
  const auto hosts = nodes(3, 2);
  std::vector<LinkRate> links;
  for (const int node : {0, 1, 2})
    links.push_back({"shard", 2 * node, 2 * node + 1, Windows(5, node == 1 ? 20 : 100)});
  const auto blame = judge(links, hosts);
  ASSERT_EQ(blame.hosts.size(), 1U);
  EXPECT_EQ(blame.hosts.begin()->first, "n1");
}

// On every host, ranks 1 and 2 are on different sockets.
TEST(SlowLinks, ComparesLinksInTheSamePlace) {
  const auto hosts = nodes(3, 3);
  std::vector<LinkRate> links;
  for (const int node : {0, 1, 2}) {
    links.push_back({"shard", 3 * node, 3 * node + 1, Windows(5, 100)});
    links.push_back({"shard", 3 * node + 1, 3 * node + 2, Windows(5, 30)});
  }
  EXPECT_TRUE(slow_links(links, hosts).empty());
}

TEST(RingPhases, HaveEachNeighborsOnceAndNobodyTwiceAtATime) {
  EXPECT_TRUE(ring_phases(1).empty());
  for (int size = 2; size <= 9; ++size) {
    std::set<std::set<int>> neighbors;
    std::size_t pairs = 0;
    for (const auto& phase : ring_phases(size)) {
      std::set<int> busy;
      for (const auto& [a, b] : phase) {
        EXPECT_TRUE(busy.insert(a).second && busy.insert(b).second) << size;
        EXPECT_TRUE(b == (a + 1) % size) << a << ' ' << b;
        neighbors.insert({a, b});
        ++pairs;
      }
    }
    const auto expected = static_cast<std::size_t>(size == 2 ? 1 : size);
    EXPECT_EQ(neighbors.size(), expected) << size;
    EXPECT_EQ(pairs, expected) << size;
  }
}

}  // namespace
}  // namespace llamesh::train
