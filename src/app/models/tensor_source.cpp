#include "app/models/tensor_source.hpp"

#include <algorithm>
#include <filesystem>

#include "checkpoint/format/format.hpp"
#include "checkpoint/format/state_reader.hpp"
#include "checkpoint/models/hf_model.hpp"
#include "checkpoint/models/hf_weights.hpp"
#include "checkpoint/models/safetensors.hpp"
#include "core/box.hpp"
#include "core/error.hpp"
#include "model/description/config_json.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

std::vector<float> room_for(const llamesh::Shape& shape) {
  return std::vector<float>(static_cast<std::size_t>(numel(shape)));
}

class Checkpoint final : public TensorSource {
 public:
  explicit Checkpoint(const fs::path& path)
      : manifest_(checkpoint::read_manifest(path)),
        file_(checkpoint::h5::File::open(path / checkpoint::state_name)) {
    for (const auto& d : manifest_.datasets) entries_.push_back({d.path, "F32", d.shape});
  }
  const std::vector<Entry>& entries() const override { return entries_; }
  std::vector<float> load(const Entry& entry) const override {
    auto values = room_for(entry.shape);
    const auto whole = Box::whole(entry.shape);
    checkpoint::read_range(file_, *manifest_.find(entry.name), {whole, 0, whole.numel()}, values);
    return values;
  }
  bool has_groups() const override { return true; }

 private:
  checkpoint::Manifest manifest_;
  checkpoint::h5::File file_;
  std::vector<Entry> entries_;
};

class HfFolder final : public TensorSource {
 public:
  explicit HfFolder(const fs::path& path) : weights_(path) {
    for (const auto& name : weights_.names()) {
      const auto& tensor = weights_.tensor(name);
      entries_.push_back({name, tensor.dtype, tensor.shape});
    }
  }
  const std::vector<Entry>& entries() const override { return entries_; }
  std::vector<float> load(const Entry& entry) const override {
    auto values = room_for(entry.shape);
    weights_.read(entry.name, 0, values);
    return values;
  }

 private:
  checkpoint::HfWeights weights_;
  std::vector<Entry> entries_;
};

class OneFile final : public TensorSource {
 public:
  explicit OneFile(const fs::path& path) : file_(path) {
    for (const auto& tensor : file_.tensors())
      entries_.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  const std::vector<Entry>& entries() const override { return entries_; }
  std::vector<float> load(const Entry& entry) const override {
    auto values = room_for(entry.shape);
    file_.read(*file_.find(entry.name), 0, values);
    return values;
  }

 private:
  checkpoint::SafetensorsFile file_;
  std::vector<Entry> entries_;
};

class Parameters final : public TensorSource {
 public:
  explicit Parameters(const fs::path& folder)
      : config_(model::read_config_json(folder)),
        table_(model::parameter_table(config_)),
        stored_(folder, config_, table_) {
    stored_.check_fits();
    for (std::size_t i = 0; i < table_.parameters.size(); ++i)
      entries_.push_back({table_.parameters[i].name,
                          std::string(name_of(stored_.type(static_cast<model::ParameterId>(i)))),
                          table_.parameters[i].shape});
  }
  const std::vector<Entry>& entries() const override { return entries_; }
  std::vector<float> load(const Entry& entry) const override {
    auto values = room_for(entry.shape);
    const auto found = std::ranges::find(table_.parameters, entry.name, &model::Parameter::name);
    const auto whole = Box::whole(entry.shape);
    stored_.read(static_cast<model::ParameterId>(found - table_.parameters.begin()),
                 {whole, 0, whole.numel()}, values);
    return values;
  }

 private:
  model::ModelConfig config_;
  model::ParameterTable table_;
  checkpoint::HfModel stored_;
  std::vector<Entry> entries_;
};

}  // namespace

std::unique_ptr<TensorSource> open_parameters(const fs::path& folder) {
  return std::make_unique<Parameters>(folder);
}

std::unique_ptr<TensorSource> open_tensors(const checkpoint::Location& location) {
  const auto& path = location.path;
  switch (location.kind) {
    case checkpoint::PathKind::hf_folder:
      return std::make_unique<HfFolder>(path);
    case checkpoint::PathKind::safetensors:
      return std::make_unique<OneFile>(path);
    case checkpoint::PathKind::tokens:
      fail(ExitCode::bad_input,
           "{} is a token file; give a checkpoint, a run folder, a Hugging Face folder or a "
           ".safetensors file",
           path.string());
    case checkpoint::PathKind::checkpoint:
    case checkpoint::PathKind::run:
      break;
  }
  return std::make_unique<Checkpoint>(checkpoint::newest_good(location));
}

}  // namespace llamesh::app
