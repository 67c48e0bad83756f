#include "checkpoint/models/stored_model.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "checkpoint/format/format.hpp"
#include "checkpoint/format/state_reader.hpp"
#include "checkpoint/models/base_model.hpp"
#include "checkpoint/models/hf_model.hpp"
#include "core/error.hpp"
#include "model/description/config_json.hpp"
#include "model/description/lora.hpp"
#include "ops/code_format.hpp"
#include "sharding/shard_values.hpp"

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

/// Parameters that are kept as codes, as they stand for them.
class RoundedModel final : public StoredModel {
 public:
  RoundedModel(std::unique_ptr<StoredModel> model, const model::ParameterTable& table)
      : model_(std::move(model)), table_(table) {}

  void read(model::ParameterId parameter, const BoxRange& range,
            std::span<float> values) const override {
    const auto& p = table_[parameter];
    if (!p.codes) return model_->read(parameter, range, values);
    const auto shared = ops::scale_numel(*p.codes);
    for_each_run(p.shape, range, [&](std::int64_t begin, std::int64_t at, std::int64_t count) {
      const auto first = begin / shared * shared;
      const auto end = std::min((begin + count + shared - 1) / shared * shared, p.numel());
      const auto whole = rounded(parameter, first, end - first);
      std::copy_n(whole.begin() + (begin - first), count, values.begin() + at);
    });
  }

 private:
  /// Returns elements that have their scales to themselves.
  std::vector<float> rounded(model::ParameterId parameter, std::int64_t first,
                             std::int64_t count) const {
    const auto& p = table_[parameter];
    std::vector<float> values(static_cast<std::size_t>(count));
    model_->read(parameter, {Box::whole(p.shape), first, count}, values);
    sharding::round_to_codes(values, *p.codes);
    return values;
  }

  std::unique_ptr<StoredModel> model_;
  const model::ParameterTable& table_;
};

class MergedModel final : public StoredModel {
 public:
  MergedModel(std::unique_ptr<StoredModel> model, const model::ModelConfig& config,
              const model::ParameterTable& table)
      : model_(std::move(model)),
        scaling_(static_cast<float>(config.lora->scaling())),
        adapters_(model::adapters_by_weight(table)),
        ids_(model::base_parameters(table)) {
    for (const auto& p : table.parameters) shapes_.push_back(p.shape);
  }

  void read(model::ParameterId parameter, const BoxRange& range,
            std::span<float> values) const override {
    const auto id = ids_[model::index(parameter)];
    model_->read(id, range, values);
    const auto found = adapters_.find(id);
    if (found == adapters_.end()) return;
    load(found->second);
    for_each_run(
        shapes_[model::index(id)], range,
        [&](std::int64_t begin, std::int64_t at, std::int64_t count) {
          add(begin, values.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)));
        });
  }

 private:
  /// Reads A and B, unless they are the last ones read.
  void load(const model::Adapter& adapter) const {
    if (loaded_ == adapter.b) return;
    const auto whole = [&](model::ParameterId id) {
      const auto box = Box::whole(shapes_[model::index(id)]);
      std::vector<float> values(static_cast<std::size_t>(box.numel()));
      model_->read(id, {box, 0, box.numel()}, values);
      return values;
    };
    a_ = whole(adapter.a);
    b_ = whole(adapter.b);
    loaded_ = adapter.b;
    rank_ = static_cast<std::size_t>(shapes_[model::index(adapter.a)][0]);
  }
  /// Adds s B A to a weight's elements from `begin` on, row by row.
  void add(std::int64_t begin, std::span<float> values) const {
    const auto columns = a_.size() / rank_;
    auto at = static_cast<std::size_t>(begin);
    while (!values.empty()) {
      const auto row = at / columns, column = at % columns;
      const auto count = std::min(values.size(), columns - column);
      for (std::size_t k = 0; k < rank_; ++k) {
        const float factor = scaling_ * b_[row * rank_ + k];
        const float* a = a_.data() + k * columns + column;
        for (std::size_t i = 0; i < count; ++i) values[i] += factor * a[i];
      }
      values = values.subspan(count);
      at += count;
    }
  }

  std::unique_ptr<StoredModel> model_;
  float scaling_;
  std::map<model::ParameterId, model::Adapter> adapters_;
  std::vector<model::ParameterId> ids_;
  std::vector<Shape> shapes_;
  mutable std::optional<model::ParameterId> loaded_;
  mutable std::vector<float> a_, b_;
  mutable std::size_t rank_ = 0;
};

}  // namespace

std::unique_ptr<StoredModel> merge_adapters(std::unique_ptr<StoredModel> model,
                                            const model::ModelConfig& config,
                                            const model::ParameterTable& table) {
  if (config.has_coded_base()) model = std::make_unique<RoundedModel>(std::move(model), table);
  return std::make_unique<MergedModel>(std::move(model), config, table);
}

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
