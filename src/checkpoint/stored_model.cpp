#include "checkpoint/stored_model.hpp"

#include <fmt/ranges.h>

#include <utility>

#include "checkpoint/format.hpp"
#include "checkpoint/hf/base_model.hpp"
#include "checkpoint/hf/hf_model.hpp"
#include "checkpoint/state_reader.hpp"
#include "core/error.hpp"
#include "model/config_json.hpp"

namespace llamesh::checkpoint {
namespace {

class CheckpointModel final : public StoredModel {
 public:
  CheckpointModel(const std::filesystem::path& path, Manifest manifest,
                  const model::ParameterTable& table, ProveBase prove)
      : manifest_(std::move(manifest)), file_(h5::File::open(path / state_name)) {
    const auto& base = manifest_.progress.base;
    if (base) open_base(*base, table);
    std::vector<model::ParameterId> in_base;
    for (std::size_t p = 0; p < table.parameters.size(); ++p) {
      const auto& parameter = table.parameters[p];
      const auto* entry = manifest_.find(dataset_path(model_group, parameter.name));
      if (!entry && base) {
        in_base.push_back(static_cast<model::ParameterId>(p));
        entries_.push_back(nullptr);
        continue;
      }
      validate(entry != nullptr, "{} has no tensor {}", path.string(), parameter.name);
      validate(entry->shape == parameter.shape, "{}: {} is ({}), but the model needs ({})",
               path.string(), parameter.name, fmt::join(entry->shape, ", "),
               fmt::join(parameter.shape, ", "));
      entries_.push_back(entry);
    }
    if (base && prove == ProveBase::yes)
      check_base(*base, base->path, hash_of_parameters(*base_, table, in_base));
  }
  void read(model::ParameterId parameter, const BoxRange& range,
            std::span<float> values) const override {
    const auto* entry = entries_[model::index(parameter)];
    entry ? read_range(file_, *entry, range, values) : base_->read(parameter, range, values);
  }

 private:
  void open_base(const BaseModel& base, const model::ParameterTable& table) {
    check_base_exists(base.path);
    const auto config = model::parse_config_json(manifest_.progress.model_config, "model_config");
    auto folder = std::make_unique<HfModel>(base.path, config, table);
    folder->check_fits();
    base_ = std::move(folder);
  }

  Manifest manifest_;
  h5::File file_;
  std::vector<const DatasetEntry*> entries_;  ///< by parameter; null: in the base model
  std::unique_ptr<StoredModel> base_;
};

}  // namespace

std::unique_ptr<StoredModel> open_model(const std::filesystem::path& checkpoint, Manifest manifest,
                                        const model::ParameterTable& table, ProveBase prove) {
  return std::make_unique<CheckpointModel>(checkpoint, std::move(manifest), table, prove);
}

std::unique_ptr<StoredModel> open_model(const Location& location, const model::ModelConfig& config,
                                        const model::ParameterTable& table, ProveBase prove) {
  if (location.kind != PathKind::hf_folder) {
    const auto checkpoint = newest_good(location);
    return open_model(checkpoint, read_manifest(checkpoint), table, prove);
  }
  auto folder = std::make_unique<HfModel>(location.path, config, table);
  folder->check_fits();
  return folder;
}

}  // namespace llamesh::checkpoint
