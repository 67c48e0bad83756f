#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/router_balance.hpp"

namespace llamesh::train {

/// How evenly a step's tokens were spread over experts. An expert's load is its number of tokens
/// relative to an equal share: 1 is balanced, 0 an expert without tokens, and `max_load - 1` the
/// MaxVio of Wang et al. 2024.
struct ExpertLoads {
  double max_load = 1, min_load = 1;  ///< over all experts of all these layers
  double entropy = 1;  ///< of a layer's assignment, mean over layers, relative to log(N): 1 is even
  double aux_loss = 1;  ///< model::load_balancing_loss(), without its coefficient
};

struct ExpertBalance {
  ExpertLoads all;
  std::optional<double> z_loss = {};               ///< if the model has this loss
  std::map<std::size_t, ExpertLoads> layers = {};  ///< by layer number, on request
};

enum class PerLayer : bool { no, yes };
/// Returns the balance of a step of a model with experts.
ExpertBalance expert_balance(const model::RouterSums& sums, bool has_z_loss, PerLayer per_layer);

/// Names the numbers for metrics.jsonl and TensorBoard.
std::map<std::string, double> by_name(const ExpertLoads& loads);

/// Detector for experts that get no token for 100 steps. They do not learn, and rarely recover by
/// themselves.
class IdleExperts {
 public:
  static constexpr std::int64_t max_idle_steps = 100;

  /// Returns a line for each layer in which experts reach that number of steps: "layer 3: ...". An
  /// expert is named again only after it has had tokens. Called after each step of this start.
  std::vector<std::string> observe(const model::RouterSums& sums);

 private:
  std::vector<std::int64_t> idle_steps_;  ///< by layer and expert
};

}  // namespace llamesh::train
