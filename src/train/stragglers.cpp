#include "train/stragglers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"

namespace llamesh::train {
namespace {

/// The lower one of the middle two, so that one of two ranks can be slow.
double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

Stragglers::Stragglers(std::vector<std::string> host_of)
    : host_of_(std::move(host_of)), seconds_(host_of_.size()), slow_(host_of_.size()) {}

std::vector<std::string> Stragglers::observe(std::span<const double> own_seconds) {
  expects(own_seconds.size() == seconds_.size(), "the seconds of {} ranks, of {}",
          own_seconds.size(), seconds_.size());
  for (std::size_t rank = 0; rank < seconds_.size(); ++rank)
    seconds_[rank].push_back(own_seconds[rank]);
  if (std::ssize(seconds_.front()) < steps) return {};
  std::vector<double> typical;
  for (auto& of_rank : seconds_) typical.push_back(lower_median(std::exchange(of_rank, {})));
  const double of_all = lower_median(typical);
  std::vector<std::string> lines;
  for (std::size_t rank = 0; rank < typical.size(); ++rank) {
    const bool slow = typical[rank] > factor * of_all && typical[rank] > of_all + least;
    if (slow && !slow_[rank])
      lines.push_back(fmt::format(
          "rank {} on {} is slow: its own work took {:.3f} s in the median of {} steps, {:.0f} % "
          "more than the median of all ranks, {:.3f} s",
          rank, host_of_[rank], typical[rank], steps, 100 * (typical[rank] / of_all - 1), of_all));
    slow_[rank] = slow;
  }
  return lines;
}

}  // namespace llamesh::train
