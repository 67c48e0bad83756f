#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "comm/communicator.hpp"
#include "train/setup.hpp"

namespace llamesh::train {

/// Steps first to last; none where last < first.
struct StepRange {
  std::int64_t first = 1;
  std::int64_t last = 0;
  bool contains(std::int64_t step) const { return first <= step && step <= last; }
};

/// Of "10-12", "10" or "". Throws a user error for anything else.
StepRange profiled_steps(const ProfileOptions& options);

/// Traces the steps of `profile.steps`: RUN/trace/trace.json has the events of all ranks in
/// Chrome's Trace Event Format. Every rank calls the same functions in the same order. Once the run
/// trains, a trace that cannot be written is warned of and given up.
class Profile {
 public:
  /// Both are borrowed.
  Profile(const comm::Communicator& world, const Setup& setup);

  /// Before the step after `step`: tries the files of the trace on every rank, and throws on all
  /// where one cannot write; warns of steps that will not be taken. Collective.
  void check(std::int64_t step) const;
  /// `step` begins. The first one that is traced aligns the ranks' clocks. Collective.
  void begin(std::int64_t step);
  /// `step` is done; returns whether it is the last one that is traced.
  bool end(std::int64_t step);
  /// Writes what was traced, if anything. Collective.
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
  std::int64_t first_ = 0, last_ = 0;  ///< steps traced and not written yet; 0: none
  std::int64_t origin_ = 0;            ///< nanoseconds since 1970 by this rank's clock: ts 0
  double clock_spread_ = 0;            ///< microseconds: within which the clock's offset was found
};

}  // namespace llamesh::train
