#include "app/loaded_model.hpp"

#include <fmt/ranges.h>

#include <filesystem>
#include <map>

#include "app/origin.hpp"
#include "app/tensor_source.hpp"
#include "checkpoint/format.hpp"
#include "checkpoint/hf/hf_config.hpp"
#include "checkpoint/location.hpp"
#include "checkpoint/state_reader.hpp"
#include "core/error.hpp"
#include "device/staging.hpp"
#include "ops/ops.hpp"
#include "sharding/tensor_placements.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

/// Returns the table for a rank's part of a model on a mesh with the axis `tensor`.
model::ParameterTable divided_table(const model::ParameterTable& table, std::int64_t hidden,
                                    const comm::ParallelDims& dims) {
  const auto mesh = sharding::tensor_axis_for(table, dims);
  auto part =
      sharding::local_table(table, mesh, sharding::tensor_parallel_placements(table, mesh, {}));
  const int ranks = dims.group_size(dims.tensor());
  validate(hidden % ranks == 0, "model.hidden_size {} is not divisible by {} ranks", hidden, ranks);
  return part;
}

}  // namespace

std::string model_path(const std::string& name) {
  const auto location = checkpoint::locate(name);
  if (location.kind == checkpoint::PathKind::hf_folder) return location.path.string();
  return checkpoint::newest_good(location, checkpoint::model_group).string();
}

std::string tokenizer_for(const LoadedModel& model, const std::string& asked) {
  if (!asked.empty()) return asked;
  const auto& own = model.data.tokenizer;
  validate(own == "byte" || fs::exists(own),
           "the model's tokenizer '{}' no longer exists; name one with --tokenizer", own);
  validate(own == "byte" || has_tokenizer(own),
           "'{}' holds neither tokenizer.json nor tokenizer.model; if the model was trained on "
           "bytes, add --tokenizer byte, else --tokenizer and a .model, a tokenizer.json or a "
           "folder",
           own);
  return own;
}

LoadedModel::Shape LoadedModel::shape_of(const std::string& path) {
  const auto location = checkpoint::locate(path);
  if (location.kind == checkpoint::PathKind::hf_folder) {
    Shape shape{checkpoint::read_hf_config(path), {}};
    shape.data.tokenizer = path;
    return shape;
  }
  const auto progress = checkpoint::read_manifest(path).progress;
  const auto origin = origin_of(progress.config);
  Shape shape{checkpoint::parse_config_json(progress.model_config, path), origin.data};
  shape.data.tokenizer = tokenizer_of(origin);
  return shape;
}

LoadedModel::LoadedModel(const std::string& path, DType dtype, const comm::ParallelDims& dims,
                         int rank)
    : LoadedModel(path, dtype, shape_of(path), dims, rank) {}

LoadedModel::LoadedModel(const std::string& path, DType dtype, Shape shape,
                         const comm::ParallelDims& dims, int rank)
    : config(shape.config),
      table(model::parameter_table(config)),
      table_of_part(divided_table(table, config.hidden_size, dims)),
      weights(table_of_part, dtype),
      data(std::move(shape.data)) {
  load(path, dims, rank);
}

void LoadedModel::load(const std::string& path, const comm::ParallelDims& dims, int rank) {
  const auto mesh = sharding::tensor_axis_for(table, dims);
  const auto placements = sharding::tensor_parallel_placements(table, mesh, {});
  const auto source = open_tensors(checkpoint::locate(path));
  std::map<std::string, const TensorSource::Entry*> entries;
  for (const auto& entry : source->entries()) entries[entry.name] = &entry;
  auto& stream = device::compute_stream();
  device::Staging staging;
  for (std::size_t i = 0; i < table.parameters.size(); ++i) {
    const auto& parameter = table.parameters[i];
    const auto found = entries.find(
        source->has_groups() ? checkpoint::dataset_path(checkpoint::model_group, parameter.name)
                             : parameter.name);
    validate(found != entries.end(), "{} has no tensor {}", path, parameter.name);
    validate(found->second->shape == parameter.shape, "{}: {} is ({}), but the model needs ({})",
             path, parameter.name, fmt::join(found->second->shape, ", "),
             fmt::join(parameter.shape, ", "));
    const auto part = sharding::part(placements[i], mesh, parameter,
                                     sharding::part_of(placements[i], mesh, rank));
    auto values = source->load(*found->second, part);
    const auto to = weights.values(static_cast<model::ParameterId>(i));
    const Tensor host(values.data(), DType::f32, {part.numel()});
    ops::copy(stream, to.reshape({part.numel()}), staging.to_device(stream, host));
  }
}

DType dtype_of_argument(const std::string& name) {
  validate(name == "fp32" || name == "bf16", "--dtype '{}' is unknown; allowed: fp32, bf16", name);
  return name == "fp32" ? DType::f32 : DType::bf16;
}

}  // namespace llamesh::app
