#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace llamesh::app {

/// Seconds of a kind of work, and of the raw work that went before or after it in the same round.
struct Timings {
  std::string name;
  std::vector<double> seconds;
};

/// Of raw: the fastest round against raw's fastest, which a disk that others use leaves alone; then
/// the median, least and most over the rounds, each against the raw work of its own round.
void print_line(const Timings& timings, const Timings& raw, double bytes);

/// Seconds until the last rank is through.
double seconds_of(const comm::Communicator& world, const std::function<void()>& work);
/// By how much the resident memory rises at most during `work`, on the rank where it rises most.
double rise_in_mib(const comm::Communicator& world, const std::function<void()>& work);

}  // namespace llamesh::app
