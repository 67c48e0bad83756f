#include "optim/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace llamesh::optim {
namespace {

/// Returns the completed fraction of the decay, from 0 to 1.
double decay_progress(const ScheduleOptions& s, std::int64_t step, std::int64_t total_steps) {
  const std::int64_t rest = std::max<std::int64_t>(1, total_steps - s.warmup_steps);
  const std::int64_t length = s.decay_steps > 0 ? s.decay_steps : rest;
  const std::int64_t begin = s.name == ScheduleName::wsd ? total_steps - length : s.warmup_steps;
  return std::clamp(static_cast<double>(step - begin) / static_cast<double>(length), 0.0, 1.0);
}

}  // namespace

double learning_rate(const ScheduleOptions& s, double lr, std::int64_t step,
                     std::int64_t total_steps) {
  if (step < s.warmup_steps)
    return lr * static_cast<double>(step + 1) / static_cast<double>(s.warmup_steps);
  const double x = decay_progress(s, step, total_steps);
  const double low = s.min_lr_ratio;
  switch (s.name) {
    case ScheduleName::constant:
      return lr;
    case ScheduleName::linear:
    case ScheduleName::wsd:
      return lr * (1 - (1 - low) * x);
    case ScheduleName::cosine:
      return lr * (low + (1 - low) * (1 + std::cos(std::numbers::pi * x)) / 2);
  }
  return lr;
}

}  // namespace llamesh::optim
