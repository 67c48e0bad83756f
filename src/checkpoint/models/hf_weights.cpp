#include "checkpoint/models/hf_weights.hpp"

#include "checkpoint/models/safetensors.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/json.hpp"

namespace llamesh::checkpoint {
namespace {

constexpr const char* whole_name = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";

}  // namespace

HfWeights::HfWeights(std::filesystem::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  validate(std::filesystem::is_directory(folder_, error), "{} is not a folder", folder_.string());
  const auto index = folder_ / index_name;
  if (std::filesystem::exists(folder_ / whole_name, error)) {
    files_ = {whole_name};
    open_.resize(1);
    open_[0] = std::make_unique<SafetensorsFile>(folder_ / files_[0]);
    for (const auto& tensor : open_[0]->tensors()) file_of_[tensor.name] = 0;
    return;
  }
  validate(std::filesystem::exists(index, error),
           "{} has neither {} nor {}; llamesh reads weights as safetensors only", folder_.string(),
           whole_name, index_name);
  read_index(index);
}

std::string HfWeights::unread_index() const {
  std::error_code ignored;
  const bool both = std::filesystem::exists(folder_ / whole_name, ignored) &&
                    std::filesystem::exists(folder_ / index_name, ignored);
  return both ? index_name : "";
}

void HfWeights::read_index(const std::filesystem::path& path) {
  std::map<std::string, std::size_t> index_of;
  for (const auto& [tensor, file] :
       parse_weight_map(read_file(path, max_safetensors_header), path.string())) {
    const auto [entry, added] = index_of.try_emplace(file, files_.size());
    if (added) files_.push_back(file);
    file_of_[tensor] = entry->second;
  }
  open_.resize(files_.size());
}

/// Opens a file on first use, and checks that it and the index list the same tensors.
const SafetensorsFile& HfWeights::file(std::size_t index) const {
  auto& slot = open_[index];
  if (slot) return *slot;
  auto opened = std::make_unique<SafetensorsFile>(folder_ / files_[index]);
  for (const auto& tensor : opened->tensors()) {
    const auto place = file_of_.find(tensor.name);
    validate(place != file_of_.end() && place->second == index,
             "{} holds '{}', which the index does not place there",
             (folder_ / files_[index]).string(), shown(tensor.name));
  }
  for (const auto& [name, place] : file_of_)
    validate(place != index || opened->find(name) != nullptr,
             "{} lacks '{}', which the index places there", (folder_ / files_[index]).string(),
             shown(name));
  slot = std::move(opened);
  return *slot;
}

std::vector<std::string> HfWeights::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : file_of_) names.push_back(name);
  return names;
}

const StoredTensor& HfWeights::tensor(const std::string& name) const {
  const auto place = file_of_.find(name);
  validate(place != file_of_.end(), "{} has no tensor '{}'", folder_.string(), name);
  return *file(place->second).find(name);
}

void HfWeights::read(const std::string& name, std::int64_t begin, std::span<float> values) const {
  const auto& stored = tensor(name);
  file(file_of_.at(name)).read(stored, begin, values);
}

}  // namespace llamesh::checkpoint
