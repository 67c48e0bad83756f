#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "train/run/setup.hpp"

namespace llamesh::train {

/// Result of one check, the same on every rank.
struct Finding {
  std::string name;
  std::string text;                        ///< one-line result
  std::map<std::string, std::string> bad;  ///< host -> problem there
};

/// Returns the ranks whose text differs from the most frequent one (on a tie, the lowest rank's).
/// Pure.
std::vector<int> outliers(const std::vector<std::string>& texts);

/// Formats the findings. The first line says whether all checks passed; for bad hosts it has the
/// option that excludes them from the next submission. Pure.
std::string verdict(const std::vector<Finding>& findings);

/// Checks every node before a long run: the same build everywhere, correct collectives on every
/// axis, compute rate, a run folder that all nodes see and can write durably, room for two and a
/// half checkpoints and for memory checkpoints, clocks that agree. Rank 0 prints a table. `build`
/// is this rank's version text. Returns `stopped_early` if some nodes are bad; throws if all are.
/// Leaves no files. Collective.
ExitCode preflight(const comm::Communicator& world, const Setup& setup, const std::string& build);

}  // namespace llamesh::train
