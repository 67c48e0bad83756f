#pragma once

#include <cstdint>

#include "optim/optimizer_options.hpp"

namespace llamesh::optim {

/// Returns the learning rate at optimizer step `step`, 0 to `total_steps` - 1. Pure.
///
/// Warmup: lr (step + 1) / warmup_steps. After it, with x from 0 to 1 over the decay: constant 1;
/// linear 1 - (1 - min) x; cosine min + (1 - min) (1 + cos(pi x)) / 2; wsd constant, then linear
/// over the last decay_steps. For linear and cosine, decay_steps counts from the warmup's end, 0
/// meaning until the run ends; after the decay the rate stays at its minimum.
double learning_rate(const ScheduleOptions& schedule, double lr, std::int64_t step,
                     std::int64_t total_steps);

}  // namespace llamesh::optim
