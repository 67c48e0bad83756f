#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace llamesh::checkpoint {

// The names of a checkpoint (docs/checkpoint-format.md). They are written here and nowhere else.

/// The newest that this program reads. It writes 1 unless a dataset was cut into parts.
inline constexpr std::int64_t format_version = 2;

/// The files of a checkpoint's folder.
inline constexpr const char* state_name = "state.h5";
inline constexpr const char* manifest_name = "manifest.json";

/// The groups of state.h5. Each has a dataset for every parameter, named as Hugging Face does.
inline constexpr std::string_view model_group = "/model";

/// "/optimizer/exp_avg"
inline std::string moment_group(std::string_view moment) {
  return "/optimizer/" + std::string(moment);
}

/// "/model/model.norm.weight"
inline std::string dataset_path(std::string_view group, std::string_view parameter) {
  return std::string(group) + "/" + std::string(parameter);
}

/// The parameter of a dataset of the model, empty for any other dataset.
inline std::string_view model_parameter(std::string_view path) {
  const bool is_one = path.starts_with(model_group) && path.substr(model_group.size(), 1) == "/";
  return is_one ? path.substr(model_group.size() + 1) : std::string_view();
}

}  // namespace llamesh::checkpoint
