#pragma once

#include <cstdint>

#include "train/setup/run_inputs.hpp"

namespace llamesh::train {

/// Steps first to last; empty if last < first.
struct StepRange {
  std::int64_t first = 1;
  std::int64_t last = 0;
  bool contains(std::int64_t step) const { return first <= step && step <= last; }
};

/// Parses "10-12", "10" or "". Throws a user error for anything else.
StepRange profiled_steps(const ProfileOptions& options);

}  // namespace llamesh::train
