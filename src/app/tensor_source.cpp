#include "app/tensor_source.hpp"

#include <filesystem>
#include <span>

#include "checkpoint/hf/hf_weights.hpp"
#include "checkpoint/hf/safetensors.hpp"
#include "checkpoint/state_reader.hpp"
#include "core/error.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

/// Loads a tensor part by calling read(begin, values) for each contiguous run of elements.
template <class Read>
std::vector<float> load_runs(const TensorSource::Entry& entry, const Box& part, const Read& read) {
  std::vector<float> all(static_cast<std::size_t>(part.numel()));
  for_each_run(entry.shape, {part, 0, part.numel()},
               [&](std::int64_t begin, std::int64_t at, std::int64_t count) {
                 read(begin, std::span(all).subspan(static_cast<std::size_t>(at),
                                                    static_cast<std::size_t>(count)));
               });
  return all;
}

class Checkpoint final : public TensorSource {
 public:
  explicit Checkpoint(const fs::path& path)
      : path_(path), manifest_(checkpoint::read_manifest(path)) {
    for (const auto& d : manifest_.datasets) entries_.push_back({d.path, "F32", d.shape});
  }
  const std::vector<Entry>& entries() const override { return entries_; }
  std::vector<float> load(const Entry& entry, const Box& part) const override {
    std::vector<float> values(static_cast<std::size_t>(part.numel()));
    checkpoint::read_part(path_, *manifest_.find(entry.name), part, values);
    return values;
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
  std::vector<float> load(const Entry& entry, const Box& part) const override {
    return load_runs(entry, part, [&](std::int64_t begin, std::span<float> values) {
      weights_.read(entry.name, begin, values);
    });
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
  std::vector<float> load(const Entry& entry, const Box& part) const override {
    const auto& tensor = *file_.find(entry.name);
    return load_runs(entry, part, [&](std::int64_t begin, std::span<float> values) {
      file_.read(tensor, begin, values);
    });
  }

 private:
  checkpoint::SafetensorsFile file_;
  std::vector<Entry> entries_;
};

}  // namespace

std::unique_ptr<TensorSource> open_tensors(const checkpoint::Location& location) {
  const auto& path = location.path;
  switch (location.kind) {
    case checkpoint::PathKind::hf_folder:
      return std::make_unique<HfFolder>(path);
    case checkpoint::PathKind::safetensors:
      return std::make_unique<OneFile>(path);
    case checkpoint::PathKind::tokens:
      fail(ExitCode::bad_input, "{} is a token file, which holds no tensors", path.string());
    case checkpoint::PathKind::checkpoint:
    case checkpoint::PathKind::run:
      break;
  }
  return std::make_unique<Checkpoint>(checkpoint::newest_good(location));
}

}  // namespace llamesh::app
