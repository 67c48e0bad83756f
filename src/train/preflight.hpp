#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "train/setup.hpp"

namespace llamesh::train {

/// What one check found, the same on every rank.
struct Finding {
  std::string name;
  std::string text;                        ///< the result in a line
  std::map<std::string, std::string> bad;  ///< host -> what is wrong there
};

/// Those ranks whose text is not the most frequent one (of several such, that of the lowest rank).
/// Pure.
std::vector<int> odd_ones_out(const std::vector<std::string>& texts);

/// The first line says whether all is in order; behind a bad host stands how to leave it out of the
/// next submission. Pure.
std::string verdict(const std::vector<Finding>& findings);

/// Looks at every node before the hours of a run are spent on it: the same build everywhere,
/// collectives that give the right answers on every axis, the compute rate, a run folder that all
/// see and can write durably, room for two and a half checkpoints, clocks that agree. Rank 0 prints
/// a table. `build` is this rank's version text. Returns `stopped_early` when some of the nodes are
/// bad; throws what is wrong with all of them. Leaves nothing behind. Collective.
ExitCode preflight(const comm::Communicator& world, const Setup& setup, const std::string& build);

}  // namespace llamesh::train
