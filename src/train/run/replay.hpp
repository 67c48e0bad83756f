#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "comm/diagnosis/watchdog.hpp"
#include "comm/mpi/communicator.hpp"
#include "train/records/run_metrics.hpp"
#include "train/setup/setup.hpp"

/// Trains steps again, to compare the bits (docs/reproducibility.md).
namespace llamesh::train {

/// What to train again, read from the run's folder on rank 0.
struct ReplayPlan {
  std::filesystem::path checkpoint;  ///< the newest one before the first step
  std::string config;                ///< inputs with which the steps were trained, YAML
  std::string mesh;  ///< on which they were, "replicate=2 x shard=4"; empty: not known
};

/// Plans to train a run's steps `first` to `last` again, given its records. Throws a user error if
/// the run has not recorded them, or has no checkpoint before. Runs on one process.
ReplayPlan plan_replay(const std::filesystem::path& run, const RunMetrics& recorded,
                       std::int64_t first, std::int64_t last);

struct ReplayEnd {
  std::int64_t first = 0, last = 0;  ///< steps compared
  std::int64_t hashed = 0;           ///< steps among these whose state was compared too
  std::string difference;            ///< in the last step, one line; empty: all are equal
};

/// Trains from the checkpoint up to step `last` and compares each step's loss, gradient norm and,
/// where they are recorded, hashes of the state with `recorded`, which rank 0 has. Ends at the
/// first difference. Writes nothing. Collective.
ReplayEnd replay(const comm::Communicator& world, const Setup& setup,
                 const std::filesystem::path& checkpoint, const RunMetrics& recorded,
                 std::int64_t last, comm::Watchdog& watchdog);

/// Returns the first quantity in which two records differ, in one line; empty if they
/// have the same bits. The hashes are compared if both have some. Pure.
std::string difference(const StepRecord& recorded, const StepRecord& replayed,
                       const StateHashes& recorded_state, const StateHashes& replayed_state);

}  // namespace llamesh::train
