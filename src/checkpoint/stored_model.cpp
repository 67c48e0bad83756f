#include "checkpoint/stored_model.hpp"

#include <fmt/ranges.h>

#include <utility>

#include "checkpoint/format.hpp"
#include "checkpoint/hf/hf_model.hpp"
#include "checkpoint/state_reader.hpp"
#include "core/error.hpp"

namespace llamesh::checkpoint {
namespace {

class CheckpointModel final : public StoredModel {
 public:
  CheckpointModel(const std::filesystem::path& path, Manifest manifest,
                  const model::ParameterTable& table)
      : manifest_(std::move(manifest)), file_(h5::File::open(path / state_name)) {
    for (const auto& parameter : table.parameters) {
      const auto* entry = manifest_.find(dataset_path(model_group, parameter.name));
      validate(entry != nullptr, "{} has no tensor {}", path.string(), parameter.name);
      validate(entry->shape == parameter.shape, "{}: {} is ({}), but the model needs ({})",
               path.string(), parameter.name, fmt::join(entry->shape, ", "),
               fmt::join(parameter.shape, ", "));
      entries_.push_back(entry);
    }
  }
  void read(model::ParameterId parameter, const BoxRange& range,
            std::span<float> values) const override {
    read_range(file_, *entries_[model::index(parameter)], range, values);
  }

 private:
  Manifest manifest_;
  h5::File file_;
  std::vector<const DatasetEntry*> entries_;  ///< by parameter
};

}  // namespace

std::unique_ptr<StoredModel> open_model(const std::filesystem::path& checkpoint, Manifest manifest,
                                        const model::ParameterTable& table) {
  return std::make_unique<CheckpointModel>(checkpoint, std::move(manifest), table);
}

std::unique_ptr<StoredModel> open_model(const Location& location, const model::ModelConfig& config,
                                        const model::ParameterTable& table) {
  if (location.kind != PathKind::hf_folder) {
    const auto checkpoint = newest_good(location);
    return open_model(checkpoint, read_manifest(checkpoint), table);
  }
  auto folder = std::make_unique<HfModel>(location.path, config, table);
  folder->check_fits();
  return folder;
}

}  // namespace llamesh::checkpoint
