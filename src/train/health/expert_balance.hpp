#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/layers/router_balance.hpp"
#include "train/records/expert_loads.hpp"

namespace llamesh::train {

enum class PerLayer : bool { no, yes };
/// Returns the balance of a step of a model with experts.
ExpertBalance expert_balance(const model::RouterSums& sums, bool has_z_loss, PerLayer per_layer);

/// Detector for experts that get no token for 100 steps. They do not learn, and rarely recover by
/// themselves.
class IdleExperts {
 public:
  static constexpr std::int64_t max_idle_steps = 100;

  /// Returns a line for each layer in which experts reach that number of steps: "layer 3: ...". An
  /// expert is named again only after it has had tokens. Called after each step of this launch.
  std::vector<std::string> observe(const model::RouterSums& sums);

 private:
  std::vector<std::int64_t> idle_steps_;  ///< by layer and expert
};

}  // namespace llamesh::train
