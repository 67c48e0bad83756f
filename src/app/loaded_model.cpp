#include "app/loaded_model.hpp"

#include <filesystem>

#include "app/origin.hpp"
#include "checkpoint/format.hpp"
#include "checkpoint/location.hpp"
#include "checkpoint/state_reader.hpp"
#include "checkpoint/stored_model.hpp"
#include "core/error.hpp"
#include "device/async_copy.hpp"
#include "model/config_json.hpp"
#include "ops/ops.hpp"

namespace llamesh::app {
namespace fs = std::filesystem;

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
    Shape shape{model::read_config_json(path), {}};
    shape.data.tokenizer = path;
    return shape;
  }
  const auto progress = checkpoint::read_manifest(path).progress;
  const auto origin = origin_of(progress.config);
  Shape shape{model::parse_config_json(progress.model_config, path), origin.data};
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
      data(std::move(shape.data)),
      shard(sharding::tensor_shard(table, dims, rank)),
      weights(shard.table, dtype) {
  load(path, rank == 0 ? checkpoint::ProveBase::yes : checkpoint::ProveBase::no);
}

void LoadedModel::load(const std::string& path, checkpoint::ProveBase prove) {
  const auto stored = checkpoint::open_model(checkpoint::locate(path), config, table, prove);
  auto& stream = device::compute_stream();
  device::Staging staging;
  std::vector<float> values;
  for (std::size_t i = 0; i < table.parameters.size(); ++i) {
    const auto id = static_cast<model::ParameterId>(i);
    const auto& part = shard.parts[i];
    values.resize(static_cast<std::size_t>(part.numel()));
    stored->read(id, {part, 0, part.numel()}, values);
    const Tensor host(values.data(), DType::f32, {part.numel()});
    ops::copy(stream, weights.values(id).reshape({part.numel()}), staging.to_device(stream, host));
  }
}

DType dtype_of_argument(const std::string& name) {
  validate(name == "fp32" || name == "bf16", "--dtype '{}' is unknown; allowed: fp32, bf16", name);
  return name == "fp32" ? DType::f32 : DType::bf16;
}

}  // namespace llamesh::app
