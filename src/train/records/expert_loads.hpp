#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <optional>

namespace llamesh::train {

/// Balance of a step's tokens over experts. An expert's load is its number of tokens
/// relative to an equal share: 1 is balanced, 0 an expert without tokens, and `max_load - 1` the
/// MaxVio of Wang et al. 2024.
struct ExpertLoads {
  double max_load = 1, min_load = 1;  ///< over all experts of all these layers
  double entropy = 1;  ///< of a layer's assignment, mean over layers, relative to log(N): 1 is even
  double aux_loss = 1;  ///< model::load_balancing_loss(), without its coefficient
  bool operator==(const ExpertLoads&) const = default;
};

struct ExpertBalance {
  ExpertLoads all;
  std::optional<double> z_loss = {};               ///< if the model has this loss
  std::map<std::size_t, ExpertLoads> layers = {};  ///< by layer number, on request
};

/// A number in ExpertLoads, by its name in metrics.jsonl and TensorBoard.
struct ExpertLoad {
  const char* name;
  double ExpertLoads::*member;
};
inline constexpr std::array expert_loads{
    ExpertLoad{"aux_loss", &ExpertLoads::aux_loss}, ExpertLoad{"entropy", &ExpertLoads::entropy},
    ExpertLoad{"max_load", &ExpertLoads::max_load}, ExpertLoad{"min_load", &ExpertLoads::min_load}};

}  // namespace llamesh::train
