#include "app/supervise/guard.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "app/supervise/bad_nodes.hpp"
#include "core/error.hpp"

namespace llamesh::app {

void Guard::place_on(const std::vector<std::string>& nodes) {
  if (std::ranges::any_of(nodes, [this](const auto& node) { return is_same_host(node, node_); }))
    return;
  if (step_) job_.end_guard();
  step_.reset();
  started_.reset();
  node_ = nodes.empty() ? "" : nodes.back();
}

void Guard::keep() {
  using namespace std::chrono_literals;
  if (node_.empty() || (step_ && !step_->exit_code())) return;
  if (started_ && Clock::now() - *started_ < 30s) return;
  started_ = Clock::now();
  try {
    step_.emplace(job_.guard_command(node_));
  } catch (const Error& error) {
    if (!std::exchange(warned_, true))
      spdlog::warn("nothing watches the batch node yet (a guard is tried every 30 s): {}",
                   error.what());
  }
}

}  // namespace llamesh::app
