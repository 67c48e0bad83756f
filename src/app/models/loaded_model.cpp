#include "app/models/loaded_model.hpp"

#include <filesystem>

#include "app/models/origin.hpp"
#include "checkpoint/format/format.hpp"
#include "checkpoint/format/state_reader.hpp"
#include "checkpoint/models/peft_folder.hpp"
#include "checkpoint/models/stored_model.hpp"
#include "checkpoint/store/location.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "device/async_copy.hpp"
#include "model/description/config_json.hpp"
#include "model/description/lora.hpp"
#include "ops/ops.hpp"

namespace llamesh::app {
namespace fs = std::filesystem;

std::string model_path(const std::string& name) {
  const auto plain = checkpoint::without_hf_prefix(name);
  validate(!checkpoint::holds_adapters_only(plain),
           "{} holds adapters only; give their base model, and add --adapter {}", plain,
           shell_word(plain));
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

LoadedModel::Shape LoadedModel::shape_of(const std::string& path, const std::string& adapter) {
  const auto location = checkpoint::locate(path);
  Shape shape;
  if (location.kind == checkpoint::PathKind::hf_folder) {
    shape.config = model::read_config_json(path);
    shape.data.tokenizer = shape.hf = path;
  } else {
    const auto progress = checkpoint::read_manifest(path).progress;
    const auto origin = origin_of(fs::path(path), progress);
    shape = {model::parse_config_json(progress.model_config, path), origin.data, origin.hf};
    shape.data.tokenizer = tokenizer_of(origin);
  }
  if (adapter.empty()) return shape;
  validate(!shape.config.lora, "{} has adapters of its own; leave --adapter {} out", path, adapter);
  shape.config.lora = model::read_adapter_config(adapter);
  model::drop_absent_targets(shape.config);
  return shape;
}

LoadedModel::LoadedModel(const std::string& path, DType dtype, const comm::ParallelDims& dims,
                         int rank, const std::string& adapter)
    : LoadedModel(path, dtype, shape_of(path, adapter), dims, rank, adapter) {}

LoadedModel::LoadedModel(const std::string& path, DType dtype, Shape shape,
                         const comm::ParallelDims& dims, int rank, const std::string& adapter)
    : config(shape.config.base()),
      table(model::parameter_table(config)),
      data(std::move(shape.data)),
      hf(std::move(shape.hf)),
      shard(sharding::tensor_shard(table, dims, rank)),
      weights(shard.table, dtype) {
  const auto prove = rank == 0 ? checkpoint::ProveBase::yes : checkpoint::ProveBase::no;
  const auto location = checkpoint::locate(path);
  if (!shape.config.lora) {
    load(*checkpoint::open_model(location, config, table, prove));
    return;
  }
  const auto adapted = model::parameter_table(shape.config);
  auto stored = adapter.empty() ? checkpoint::open_model(location, shape.config, adapted, prove)
                                : checkpoint::with_adapters(
                                      checkpoint::open_model(location, config, table, prove),
                                      adapter, shape.config, adapted);
  load(*checkpoint::merge_adapters(std::move(stored), shape.config, adapted));
}

void LoadedModel::load(const checkpoint::StoredModel& stored) {
  auto& stream = device::compute_stream();
  device::Staging staging;
  std::vector<float> values;
  for (std::size_t i = 0; i < table.parameters.size(); ++i) {
    const auto id = static_cast<model::ParameterId>(i);
    const auto& part = shard.parts[i];
    values.resize(static_cast<std::size_t>(part.numel()));
    stored.read(id, {part, 0, part.numel()}, values);
    const Tensor host(values.data(), DType::f32, {part.numel()});
    const Tensor padded = weights.values(id);
    ops::copy(stream, padded.reshape({padded.numel()}).slice(0, part.numel()),
              staging.to_device(stream, host));
  }
}

std::string advice_on_nonfinite_weights(const std::string& path) {
  std::string convert, folder = shell_word(path);
  if (checkpoint::locate(path).kind == checkpoint::PathKind::checkpoint) {
    // For a checkpoint, `verify` compares only the checksums.
    convert = fmt::format("llamesh convert --from {} --to FOLDER, then ", folder);
    folder = "FOLDER";
  }
  return fmt::format("look for weights that are not finite: {}llamesh verify {}", convert, folder);
}

DType dtype_of_argument(const std::string& name) {
  validate(name == "fp32" || name == "bf16", "--dtype '{}' is unknown; allowed: fp32, bf16", name);
  return name == "fp32" ? DType::f32 : DType::bf16;
}

}  // namespace llamesh::app
