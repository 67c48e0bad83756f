#include "train/step/expert_balance.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

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

}  // namespace

ExpertBalance expert_balance(const model::RouterSums& sums, bool has_z_loss, PerLayer per_layer) {
  ExpertBalance balance{.all = loads_of(sums)};
  if (has_z_loss) balance.z_loss = model::z_loss(sums);
  for (std::size_t i = 0; per_layer == PerLayer::yes && i < sums.layers.size(); ++i)
    balance.layers[sums.layers[i]] = loads_of(sums.layer(i));
  return balance;
}

std::map<std::string, double> by_name(const ExpertLoads& loads) {
  return {{"max_load", loads.max_load},
          {"min_load", loads.min_load},
          {"entropy", loads.entropy},
          {"aux_loss", loads.aux_loss}};
}

}  // namespace llamesh::train
