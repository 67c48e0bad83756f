#include "train/health/idle_experts.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace llamesh::train {
namespace {

std::string idle_line(std::size_t layer, std::vector<std::size_t> experts, std::int64_t all) {
  constexpr std::size_t max_named = 8;
  const auto count = experts.size();
  experts.resize(std::min(count, max_named));
  const auto more = count > max_named ? fmt::format(" and {} more", count - max_named) : "";
  return fmt::format(
      "layer {}: {} of {} experts got no token for {} steps: {}{}; set "
      "model.output_router_logits=true or raise model.router_aux_loss_coef to balance them",
      layer, count, all, IdleExperts::max_idle_steps, fmt::join(experts, ", "), more);
}

}  // namespace

std::vector<std::string> IdleExperts::observe(const model::RouterSums& sums) {
  idle_steps_.resize(sums.counts.size());
  const auto per_layer = static_cast<std::size_t>(sums.experts);
  std::vector<std::string> lines;
  for (std::size_t l = 0; l < sums.layers.size(); ++l) {
    std::vector<std::size_t> found;
    for (std::size_t e = 0; e < per_layer; ++e) {
      auto& idle = idle_steps_[l * per_layer + e];
      idle = sums.counts[l * per_layer + e] > 0 ? 0 : idle + 1;
      if (idle == max_idle_steps) found.push_back(e);
    }
    if (!found.empty()) lines.push_back(idle_line(sums.layers[l], std::move(found), sums.experts));
  }
  return lines;
}

}  // namespace llamesh::train
