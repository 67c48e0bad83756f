#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace llamesh::train {

/// A rank or link is slow below this share of the median.
inline constexpr double slow_below = 0.8;
/// Minimum number of ranks or links to compare: among fewer, no median tells which one is slow.
inline constexpr std::size_t min_compared = 3;

/// Rates in several short windows. Other work on a machine only lowers them, so a slow rank or link
/// is slow in each window, and its best one counts. The usual rate is a median over windows.
using Windows = std::vector<double>;

/// A rank that is slower than the ranks with the same index on other hosts.
struct SlowRank {
  int rank = 0;
  double best = 0;         ///< its best window
  double median = 0;       ///< usual rate
  bool is_certain = true;  ///< false: there are two hosts, and either may be unusual
};

/// Returns the slow ranks, given the windows and hosts by rank. Compares ranks with the same index
/// on their host, since these have the same cores and the same path to memory. Pure.
std::vector<SlowRank> slow_ranks(const std::vector<Windows>& rates,
                                 const std::vector<std::string>& hosts);

/// Exchange between two neighbors on an axis, in both directions at once.
struct LinkRate {
  std::string axis;
  int first = 0;  ///< ranks
  int second = 0;
  Windows windows;
};

struct SlowLink {
  LinkRate link;
  double best = 0;
  double median = 0;
};

/// Returns the slow links. Compares links along the same axis whose ends have the same indices on
/// their hosts: some of these links are slower than others on every host. Pure.
std::vector<SlowLink> slow_links(const std::vector<LinkRate>& links,
                                 const std::vector<std::string>& hosts);

/// Result for slow links.
struct LinkBlame {
  std::map<std::string, std::vector<SlowLink>> hosts;  ///< host to blame -> its slow links
  std::vector<SlowLink> pairs;                         ///< links whose slow end is unknown
};

/// Blames a host for links within it, and if its links to several other hosts are slow. Pure.
LinkBlame blame_for_links(const std::vector<SlowLink>& slow, const std::vector<std::string>& hosts);

/// Returns which neighbors on a ring with `size` members exchange at the same time: phases in which
/// no member has two peers. Together they cover all neighbors. Pure.
std::vector<std::vector<std::pair<int, int>>> ring_phases(int size);

}  // namespace llamesh::train
