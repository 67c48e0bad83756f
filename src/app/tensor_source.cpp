#include "app/tensor_source.hpp"

#include <algorithm>

#include "checkpoint/hf_weights.hpp"
#include "checkpoint/reader.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/store.hpp"
#include "core/error.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

class Checkpoint final : public TensorSource {
 public:
  explicit Checkpoint(const fs::path& path)
      : path_(path), manifest_(checkpoint::read_manifest(path)) {
    for (const auto& d : manifest_.datasets) entries_.push_back({d.path, "F32", d.shape});
  }
  const std::vector<Entry>& entries() const override { return entries_; }
  std::vector<float> load(const Entry& entry) const override {
    const auto& dataset = *manifest_.find(entry.name);
    std::vector<float> all(static_cast<std::size_t>(dataset.numel()));
    checkpoint::for_each_segment(path_, dataset,
                                 [&](std::int64_t begin, std::span<const float> values) {
                                   std::ranges::copy(values, all.begin() + begin);
                                 });
    return all;
  }
  bool has_groups() const override { return true; }

 private:
  fs::path path_;
  checkpoint::Manifest manifest_;
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
    std::vector<float> all(static_cast<std::size_t>(weights_.tensor(entry.name).numel()));
    weights_.read(entry.name, 0, all);
    return all;
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
    const auto& tensor = *file_.find(entry.name);
    std::vector<float> all(static_cast<std::size_t>(tensor.numel()));
    file_.read(tensor, 0, all);
    return all;
  }

 private:
  checkpoint::SafetensorsFile file_;
  std::vector<Entry> entries_;
};

}  // namespace

fs::path plain_path(const std::string& path) {
  return path.starts_with("hf:") ? path.substr(3) : path;
}

bool is_hf_folder(const fs::path& path) {
  std::error_code error;
  return fs::exists(path / "model.safetensors", error) ||
         fs::exists(path / "model.safetensors.index.json", error);
}

fs::path newest_checkpoint(const fs::path& path) {
  std::error_code error;
  if (fs::exists(path / "manifest.json", error)) return path;
  for (const auto& folder : {path / "checkpoints", path}) {
    const auto checkpoints = checkpoint::committed_checkpoints(folder);
    if (!checkpoints.empty()) return checkpoints.front();
  }
  fail(ExitCode::bad_input, "{} is neither a run folder nor a checkpoint: it has no manifest.json",
       path.string());
}

std::unique_ptr<TensorSource> open_tensors(const std::string& path) {
  const fs::path at = plain_path(path);
  validate(fs::exists(at), "there is no {}", at.string());
  if (fs::is_regular_file(at)) return std::make_unique<OneFile>(at);
  if (is_hf_folder(at)) return std::make_unique<HfFolder>(at);
  return std::make_unique<Checkpoint>(newest_checkpoint(at));
}

}  // namespace llamesh::app
