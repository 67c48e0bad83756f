#include "train/preflight/slow_nodes.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>

#include "core/median.hpp"

namespace llamesh::train {
namespace {

using Hosts = std::vector<std::string>;

/// Returns the lower median: if half of the values are lower, as with two types of node, none
/// counts as slow.
double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

double best_of(const Windows& windows) {
  return std::ranges::max(windows);
}

/// Returns each rank's index among the ranks on its host.
std::vector<int> index_on_host(const Hosts& hosts) {
  std::map<std::string, int> ranks;
  std::vector<int> index;
  for (const auto& host : hosts) index.push_back(ranks[host]++);
  return index;
}

/// Appends the slow ones among two or more ranks to compare.
void compare(const std::vector<int>& ranks, const std::vector<Windows>& rates,
             std::vector<SlowRank>& slow) {
  std::vector<double> usual;
  for (const int rank : ranks) usual.push_back(median(rates[static_cast<std::size_t>(rank)]));
  const bool is_certain = ranks.size() >= min_compared;
  const double reference = is_certain ? lower_median(usual) : std::ranges::max(usual);
  for (const int rank : ranks) {
    const double best = best_of(rates[static_cast<std::size_t>(rank)]);
    if (best < slow_below * reference) slow.push_back({rank, best, reference, is_certain});
  }
}

const std::string& host_of(int rank, const Hosts& hosts) {
  return hosts[static_cast<std::size_t>(rank)];
}

bool within_host(const SlowLink& slow, const Hosts& hosts) {
  return host_of(slow.link.first, hosts) == host_of(slow.link.second, hosts);
}

/// Returns the usual rate of these links: the median over ranks of each one's best link. A slow
/// host slows both of its links, which are most links on a ring of three hosts, but the best link
/// of only one rank.
double usual_rate(const std::vector<const LinkRate*>& links) {
  std::map<int, double> best;
  for (const auto* link : links)
    for (const int rank : {link->first, link->second})
      best[rank] = std::max(best[rank], median(link->windows));
  std::vector<double> rates;
  for (const auto& [rank, rate] : best) rates.push_back(rate);
  return lower_median(rates);
}

/// A host's slow links.
struct HostLinks {
  std::string host;
  std::set<std::string> others;  ///< at the other ends
  double fastest = 0;            ///< share of the median that the fastest of them reaches
};

/// Returns the host whose slow links lead to the most other hosts; in a tie, the one whose fastest
/// slow link is slowest.
HostLinks worst_host(const std::vector<SlowLink>& links, const Hosts& hosts) {
  std::map<std::string, HostLinks> by_host;
  for (const auto& slow : links) {
    const auto& a = host_of(slow.link.first, hosts);
    const auto& b = host_of(slow.link.second, hosts);
    for (const auto& [host, other] : {std::pair(a, b), std::pair(b, a)}) {
      auto& its = by_host[host];
      its.host = host;
      its.others.insert(other);
      its.fastest = std::max(its.fastest, slow.best / slow.median);
    }
  }
  HostLinks worst;
  for (const auto& [host, its] : by_host)
    if (std::pair(its.others.size(), -its.fastest) > std::pair(worst.others.size(), -worst.fastest))
      worst = its;
  return worst;
}

}  // namespace

std::vector<SlowRank> slow_ranks(const std::vector<Windows>& rates, const Hosts& hosts) {
  std::map<int, std::vector<int>> by_index;
  const auto index = index_on_host(hosts);
  for (std::size_t r = 0; r < hosts.size(); ++r) by_index[index[r]].push_back(static_cast<int>(r));
  std::vector<SlowRank> slow;
  for (const auto& [place, ranks] : by_index)
    if (ranks.size() > 1) compare(ranks, rates, slow);
  std::ranges::sort(slow, {}, &SlowRank::rank);
  return slow;
}

std::vector<SlowLink> slow_links(const std::vector<LinkRate>& links, const Hosts& hosts) {
  const auto index = index_on_host(hosts);
  const auto place = [&](int rank) { return index[static_cast<std::size_t>(rank)]; };
  std::map<std::tuple<std::string, bool, int, int>, std::vector<const LinkRate*>> alike;
  for (const auto& link : links) {
    const bool within = host_of(link.first, hosts) == host_of(link.second, hosts);
    const auto [low, high] = std::minmax({place(link.first), place(link.second)});
    alike[{link.axis, within, low, high}].push_back(&link);
  }
  std::vector<SlowLink> slow;
  for (const auto& [key, compared] : alike) {
    if (compared.size() < min_compared) continue;
    const double usual = usual_rate(compared);
    for (const auto* link : compared)
      if (const double best = best_of(link->windows); best < slow_below * usual)
        slow.push_back({*link, best, usual});
  }
  return slow;
}

LinkBlame blame_for_links(const std::vector<SlowLink>& slow, const Hosts& hosts) {
  LinkBlame blame;
  auto left = slow;
  const auto blame_host = [&](const std::string& host, const auto& is_its_own) {
    std::ranges::copy_if(left, std::back_inserter(blame.hosts[host]), is_its_own);
    std::erase_if(left, is_its_own);
  };
  for (const auto& one : slow)
    if (within_host(one, hosts)) {
      const auto& host = host_of(one.link.first, hosts);
      blame_host(host, [&](const SlowLink& other) {
        return within_host(other, hosts) && host_of(other.link.first, hosts) == host;
      });
    }
  for (auto worst = worst_host(left, hosts); worst.others.size() > 1;
       worst = worst_host(left, hosts))
    blame_host(worst.host, [&](const SlowLink& other) {
      return host_of(other.link.first, hosts) == worst.host ||
             host_of(other.link.second, hosts) == worst.host;
    });
  blame.pairs = left;
  return blame;
}

std::vector<std::vector<std::pair<int, int>>> ring_phases(int size) {
  std::vector<std::vector<std::pair<int, int>>> phases;
  for (const int start : {0, 1}) {
    std::vector<std::pair<int, int>> pairs;
    for (int i = start; i + 1 < size; i += 2) pairs.emplace_back(i, i + 1);
    if (!pairs.empty()) phases.push_back(pairs);
  }
  if (size < 3) return phases;
  // An even ring closes in its second phase, an odd one needs a third.
  if (size % 2 != 0) phases.emplace_back();
  phases.back().emplace_back(size - 1, 0);
  return phases;
}

}  // namespace llamesh::train
