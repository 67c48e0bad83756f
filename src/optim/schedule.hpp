#pragma once

#include <cstdint>

#include "optim/optimizer_options.hpp"

namespace llamesh::optim {

/// The learning rate of optimizer step `step` (the first is 0) of `total_steps`. Pure.
///
/// Warmup: lr (step + 1) / warmup_steps. After it, with x from 0 to 1 over the decay:
/// constant 1; linear 1 - (1 - min) x; cosine min + (1 - min) (1 + cos(pi x)) / 2; wsd constant,
/// then linear over the last decay_steps. For linear and cosine decay_steps counts from the end of
/// the warmup, 0 meaning to the end of the run; the rate stays at the minimum after it.
double learning_rate(const ScheduleOptions& schedule, double lr, std::int64_t step,
                     std::int64_t total_steps);

}  // namespace llamesh::optim
