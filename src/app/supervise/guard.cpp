#include "app/supervise/guard.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"

namespace llamesh::app {

void Guard::place_on(const std::vector<std::string>& nodes) {
  if (std::ranges::equal(nodes, steps_, {}, {}, &Step::node)) return;
  if (!steps_.empty()) job_.end_guard();
  steps_.clear();
  for (const auto& node : nodes) steps_.push_back({.node = node});
}

void Guard::keep() {
  for (auto& step : steps_) keep(step);
}

void Guard::keep(Step& step) {
  using namespace std::chrono_literals;
  if (step.process && !step.process->exit_code()) return;
  if (step.started && Clock::now() - *step.started < 30s) return;
  step.started = Clock::now();
  try {
    step.process = std::make_unique<Child>(job_.guard_command(step.node));
  } catch (const Error& error) {
    if (!std::exchange(warned_, true))
      spdlog::warn("no guard for the batch node yet, trying again every 30 s: {}", error.what());
  }
}

}  // namespace llamesh::app
