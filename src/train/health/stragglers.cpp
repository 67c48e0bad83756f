#include "train/health/stragglers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"

namespace llamesh::train {
namespace {

double mean_of_middle_two(std::vector<double> values) {
  std::ranges::sort(values);
  const auto count = values.size();
  return 0.5 * (values[(count - 1) / 2] + values[count / 2]);
}

/// Returns the median; with two ranks the faster one, or neither could exceed it by much.
double typical_of_all(const std::vector<double>& by_rank) {
  return by_rank.size() == 2 ? std::min(by_rank[0], by_rank[1]) : mean_of_middle_two(by_rank);
}

}  // namespace

Stragglers::Stragglers(std::vector<std::string> host_of)
    : host_of_(std::move(host_of)),
      seconds_(host_of_.size()),
      times_slow_(host_of_.size()),
      reported_(host_of_.size()) {}

std::vector<std::string> Stragglers::observe(std::span<const double> own_seconds,
                                             std::span<const double> load_per_core) {
  expects(own_seconds.size() == seconds_.size(), "the seconds of {} ranks, of {}",
          own_seconds.size(), seconds_.size());
  for (std::size_t rank = 0; rank < seconds_.size(); ++rank)
    seconds_[rank].push_back(own_seconds[rank]);
  elapsed_ += std::ranges::max(own_seconds);
  const auto observed = std::ssize(seconds_.front());
  if (observed < steps || elapsed_ < window) return {};
  elapsed_ = 0;
  std::vector<double> typical;
  for (auto& of_rank : seconds_) typical.push_back(mean_of_middle_two(std::exchange(of_rank, {})));
  const double of_all = typical_of_all(typical);
  std::vector<std::string> lines;
  for (std::size_t rank = 0; rank < typical.size(); ++rank) {
    const bool slow = typical[rank] > factor * of_all && typical[rank] > of_all + least;
    times_slow_[rank] = slow ? times_slow_[rank] + 1 : 0;
    reported_[rank] = reported_[rank] && slow;
    const double load = load_per_core.empty() ? 0 : load_per_core[rank];
    const bool is_busy = load > busy;
    if (reported_[rank] || times_slow_[rank] < (is_busy ? comparisons_if_busy : 1)) continue;
    reported_[rank] = true;
    lines.push_back(fmt::format(
        "rank {} on {} is slow: its own work took {:.3f} s in the median of {} steps, {:.0f} % "
        "more than the median of all ranks, {:.3f} s{}",
        rank, host_of_[rank], typical[rank], observed, 100 * (typical[rank] / of_all - 1), of_all,
        is_busy
            ? fmt::format("; {} has a load of {:.1f} per core, so other programs may be the cause",
                          host_of_[rank], load)
            : ""));
  }
  return lines;
}

}  // namespace llamesh::train
