#include "train/health/expert_balance.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

namespace llamesh::train {
namespace {

ExpertLoads loads_of(const model::RouterSums& sums) {
  const auto layers = static_cast<double>(sums.layers.size());
  const auto experts = static_cast<double>(sums.experts);
  const auto slots = static_cast<double>(sums.tokens * sums.experts_per_tok);  // in a layer
  const auto [min, max] = std::ranges::minmax(sums.counts);
  double entropy = 0;
  for (const double count : sums.counts)
    if (count > 0) entropy -= count / slots * std::log(count / slots);
  return {.max_load = max * experts / slots,
          .min_load = min * experts / slots,
          .entropy = sums.experts > 1 ? entropy / layers / std::log(experts) : 1,
          .aux_loss = model::load_balancing_loss(sums)};
}

std::string idle_line(std::size_t layer, std::vector<std::size_t> experts, std::int64_t all) {
  constexpr std::size_t max_named = 8;
  const auto count = experts.size();
  experts.resize(std::min(count, max_named));
  const auto more = count > max_named ? fmt::format(" and {} more", count - max_named) : "";
  return fmt::format(
      "layer {}: {} of {} experts got no token for {} steps: {}{}; to balance them, set "
      "model.output_router_logits=true or raise model.router_aux_loss_coef, or with sigmoid "
      "routers model.router_bias_update_rate",
      layer, count, all, IdleExperts::max_idle_steps, fmt::join(experts, ", "), more);
}

}  // namespace

ExpertBalance expert_balance(const model::RouterSums& sums, bool has_z_loss, PerLayer per_layer) {
  ExpertBalance balance{.all = loads_of(sums)};
  if (has_z_loss) balance.z_loss = model::z_loss(sums);
  for (std::size_t i = 0; per_layer == PerLayer::yes && i < sums.layers.size(); ++i)
    balance.layers[sums.layers[i]] = loads_of(sums.layer(i));
  return balance;
}

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
