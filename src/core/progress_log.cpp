#include "core/progress_log.hpp"

#include <spdlog/spdlog.h>

#include "core/clock.hpp"

namespace llamesh {

void ProgressLog::step() {
  ++done_;
  const auto now = Clock::now();
  if (now - shown_ < interval_) return;
  shown_ = now;
  spdlog::info("{}: {}{} after {:.0f} s", what_, done_,
               total_ > 0 ? fmt::format(" of {}", total_) : "", seconds_since(start_));
}

}  // namespace llamesh
