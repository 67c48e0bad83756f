#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/hardware.hpp"
#include "plan/dry_run_checks.hpp"
#include "train/setup/setup.hpp"

namespace llamesh::plan {

/// Results from simulating a launch rank by rank (`llamesh plan --dry-run`).
struct DryRun {
  /// Groups along some axes.
  struct Groups {
    std::string axis;
    int size;
    int count;                 ///< number of such groups
    std::int64_t collectives;  ///< maximum per rank and step
  };
  std::vector<Groups> groups;
  int simulated = 0;  ///< ranks that were simulated
  CheckpointWrites checkpoint;
};

/// Simulates two steps on one rank per class, and throws (checks.hpp) unless, over all ranks, group
/// members agree about their collectives, every parameter element is owned once in each replica of
/// the state, and every checkpoint element is written once. Needs neither MPI nor data. `hardware`
/// describes one rank.
DryRun dry_run(const train::Setup& setup, const device::Hardware& hardware,
               const RankClasses& classes);

}  // namespace llamesh::plan
