#pragma once

#include <map>
#include <string>
#include <vector>

#include "comm/mesh/device_mesh.hpp"
#include "core/error.hpp"
#include "train/setup/setup.hpp"

namespace llamesh::train {

/// Result of one check, the same on every rank.
struct Finding {
  std::string name;
  std::string text;                        ///< one-line result
  std::map<std::string, std::string> bad;  ///< host -> problem there
  std::vector<std::string> warnings = {};  ///< problems without a host to blame, one line each
};

/// Returns the ranks whose text differs from the most frequent one (on a tie, the lowest rank's).
/// Pure.
std::vector<int> outliers(const std::vector<std::string>& texts);

/// Formats the findings. The first line says whether all checks passed; for bad hosts it has the
/// option that excludes them from the next submission. Pure.
std::string summary(const std::vector<Finding>& findings);

/// Checks every node before a long run: the same build everywhere, correct collectives on every
/// axis, no node with slow compute, memory or links, healthy GPUs, a run folder that all nodes see
/// and can write durably, room for two and a half checkpoints and for memory checkpoints, clocks
/// that agree. Rank 0 prints a table. `build` is this rank's version text. Returns `stopped_early`
/// if nodes are bad. Leaves no files. Collective.
ExitCode preflight(const comm::Communicator& world, const Setup& setup, const std::string& build);

/// Measures the nodes of a launch by `llamesh supervise`, which sets LLAMESH_SPARE_NODES to the
/// number of healthy spares. Does nothing otherwise. If hosts are slow or unhealthy, and there is a
/// spare for each, records them as faulty in state.json and throws (exit 75). Otherwise returns a
/// line for each, and the run goes on with them. Takes some seconds. Collective.
std::vector<std::string> check_health(const comm::Communicator& world, const Setup& setup);

}  // namespace llamesh::train
