#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace llamesh::checkpoint {

// All names in a checkpoint (docs/checkpoint-format.md) are defined here and nowhere else.

/// Newest version that this program reads. It writes 1 unless a dataset was split into parts (2) or
/// frozen weights are in a base model (3).
inline constexpr std::int64_t format_version = 3;

/// Files in a checkpoint folder.
inline constexpr const char* state_name = "state.h5";
inline constexpr const char* manifest_name = "manifest.json";

/// File in a folder of checkpoints that names the best one by validation loss, if the run keeps
/// such.
inline constexpr const char* best_name = "BEST";

/// File with the run's identity in the checkpoint folder of a run with memory checkpoints.
inline constexpr const char* run_identity_name = ".run_id";

/// Groups in state.h5. Each has one dataset per parameter, with Hugging Face's names.
inline constexpr std::string_view model_group = "/model";

/// Returns a moment's group, e.g. "/optimizer/exp_avg".
inline std::string moment_group(std::string_view moment) {
  return "/optimizer/" + std::string(moment);
}

/// Group whose members, by number, hold what replicas have of their own: weights and moments of
/// those that train apart, where `/model` has the weights that they exchanged last, or errors.
inline constexpr std::string_view replicas_group = "/replicas";
/// A replica's group with what quantization has left out of its gradients, for the next step.
inline constexpr std::string_view errors_group = "/gradient_errors";
/// Returns the path of a replica's own `group`, e.g. "/replicas/0/model".
inline std::string replica_path(int replica, std::string_view group) {
  return std::string(replicas_group) + "/" + std::to_string(replica) + std::string(group);
}

/// Returns a dataset's path, e.g. "/model/model.norm.weight".
inline std::string dataset_path(std::string_view group, std::string_view parameter) {
  return std::string(group) + "/" + std::string(parameter);
}

/// Returns the parameter name of a model dataset, or "" for any other dataset.
inline std::string_view model_parameter(std::string_view path) {
  const bool is_one = path.starts_with(model_group) && path.substr(model_group.size(), 1) == "/";
  return is_one ? path.substr(model_group.size() + 1) : std::string_view();
}

}  // namespace llamesh::checkpoint
