#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "comm/mpi/communicator.hpp"
#include "train/setup/profiled_steps.hpp"
#include "train/setup/setup.hpp"

namespace llamesh::train {

/// Tracer for the steps in `profile.steps`: RUN/trace/trace.json has all ranks' events in Chrome's
/// Trace Event Format. Every rank calls the same functions in the same order. Once the run trains,
/// a trace that cannot be written is given up with a warning.
class Profile {
 public:
  /// Borrows both.
  Profile(const comm::Communicator& world, const Setup& setup);

  /// Checks that every rank can write the trace files, and throws on all if one cannot; warns about
  /// steps that will not run. Called before the step after `step`. Collective.
  void check(std::int64_t step) const;
  /// Begins `step`. The first traced step aligns the ranks' clocks. Collective.
  void begin(std::int64_t step);
  /// Ends `step`; returns true if it is the last traced one.
  bool end(std::int64_t step);
  /// Writes the trace, if there is any. Collective.
  void write();

 private:
  void align_clocks();
  std::string own_events(std::int64_t& lost) const;
  void merge() const;
  bool all_can(const std::function<void()>& write, const char* purpose) const;
  std::filesystem::path file_of(int rank) const;

  const comm::Communicator& world_;
  const Setup& setup_;
  const StepRange steps_;
  std::filesystem::path folder_;
  std::int64_t first_ = 0, last_ = 0;  ///< steps traced but not yet written; 0: none
  std::int64_t origin_ = 0;            ///< ts 0 on this rank's clock, in nanoseconds since 1970
  double clock_spread_ = 0;            ///< uncertainty of the clock offset, in microseconds
};

}  // namespace llamesh::train
