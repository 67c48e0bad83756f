#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/metrics.hpp"

namespace llamesh::train {

/// The record for people, "loss 2.3457", the most important field first.
std::vector<std::string> fields(const StepRecord& record, std::int64_t total_steps);

}  // namespace llamesh::train
