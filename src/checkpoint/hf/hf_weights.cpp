#include "checkpoint/hf/hf_weights.hpp"

#include <set>

#include "checkpoint/hf/hf_index.hpp"
#include "checkpoint/hf/hf_json.hpp"
#include "core/error.hpp"
#include "core/file.hpp"

namespace llamesh::checkpoint {
namespace {

constexpr auto head_name = "lm_head.weight";

bool is_buffer(const std::string& name) {
  return name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace

HfWeights::HfWeights(std::filesystem::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  validate(std::filesystem::is_directory(folder_, error), "{} is not a folder", folder_.string());
  const auto index = folder_ / "model.safetensors.index.json";
  if (std::filesystem::exists(folder_ / "model.safetensors", error)) {
    files_ = {"model.safetensors"};
    open_.resize(1);
    open_[0] = std::make_unique<SafetensorsFile>(folder_ / files_[0]);
    for (const auto& tensor : open_[0]->tensors()) file_of_[tensor.name] = 0;
    return;
  }
  validate(std::filesystem::exists(index, error),
           "{} has neither model.safetensors nor model.safetensors.index.json; llamesh reads "
           "weights as safetensors only",
           folder_.string());
  read_index(index);
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

void HfWeights::read_bytes(const std::string& name, std::int64_t begin,
                           std::span<std::uint8_t> to) const {
  const auto& stored = tensor(name);
  file(file_of_.at(name)).read_bytes(stored, begin, to);
}

void HfWeights::read(const std::string& name, std::int64_t begin, std::span<float> values) const {
  const auto& stored = tensor(name);
  file(file_of_.at(name)).read(stored, begin, values);
}

void HfWeights::check_fits(const model::ParameterTable& table) const {
  std::set<std::string> extra;
  for (const auto& name : names())
    if (!is_buffer(name)) extra.insert(name);
  const auto check = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    const auto& stored = tensor(name);
    validate(stored.shape == shape, "{}: '{}' has shape ({}) where the model has ({})",
             folder_.string(), name, fmt::join(stored.shape, ", "), fmt::join(shape, ", "));
    validate(stored_type(stored.dtype).has_value(), "{}: '{}' is {}; F32, BF16 and F16 are read",
             folder_.string(), name, shown(stored.dtype));
    extra.erase(name);
  };
  for (const auto& parameter : table.parameters) check(parameter.name, parameter.shape);
  if (table.tied() && has(head_name)) check(head_name, table[table.lm_head.weight].shape);
  validate(extra.empty(), "{} has '{}'{}, which the model does not", folder_.string(),
           extra.empty() ? "" : shown(*extra.begin()),
           extra.size() > 1 ? fmt::format(" and {} other tensors", extra.size() - 1) : "");
}

}  // namespace llamesh::checkpoint
