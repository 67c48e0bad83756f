#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/hardware.hpp"
#include "train/dry_run/checks.hpp"
#include "train/setup.hpp"

namespace llamesh::train {

/// What has been seen of a launch that was gone through rank by rank (`llamesh plan --dry-run`).
struct DryRun {
  /// The groups along some axes.
  struct Groups {
    std::string axis;
    int size;
    int count;                 ///< of such groups
    std::int64_t collectives;  ///< that a rank calls in a step, at most
  };
  std::vector<Groups> groups;
  int simulated = 0;  ///< ranks that took steps
  CheckpointWrites checkpoint;
};

/// Lets ranks take two steps on a simulated device, a rank of each class for all of it, and throws
/// (checks.hpp) unless on all ranks together the members of each group agree about their
/// collectives, every element of every parameter is owned once in each replica of the state, and
/// every element of a checkpoint is written once. Needs neither MPI nor data. `hardware` is that of
/// a rank.
DryRun dry_run(const Setup& setup, const device::Hardware& hardware, const RankClasses& classes);

}  // namespace llamesh::train
