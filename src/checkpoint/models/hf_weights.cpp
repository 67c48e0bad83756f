#include "checkpoint/models/hf_weights.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "checkpoint/models/safetensors.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/json.hpp"
#include "core/text.hpp"

namespace llamesh::checkpoint {
namespace {

constexpr const char* whole_name = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";
constexpr std::string_view scale_suffix = "_scale_inv";
constexpr std::string_view activation_scale = ".activation_scale";
constexpr std::string_view blocks_suffix = "_blocks", scales_suffix = "_scales";  // of MXFP4

/// Returns the shape that blocks with one scale have; empty if config.json does not say it.
std::vector<std::int64_t> block_shape(const std::filesystem::path& folder) {
  const auto path = folder / "config.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  const auto json = parse_json_object(read_file(path, std::int64_t{1} << 20U), path.string());
  const auto quantization = json.find("quantization_config");
  if (quantization == json.end() || !quantization->is_object()) return {};
  const auto block = quantization->find("weight_block_size");
  if (block == quantization->end() || block->is_null()) return {};
  const auto is_size = [](const auto& item) {
    return item.is_number_integer() && item > 0 && item <= 1 << 24;
  };
  validate(block->is_array() && block->size() == 2 && std::ranges::all_of(*block, is_size),
           "{}: quantization_config: weight_block_size: expected two sizes, got {}", path.string(),
           excerpt(block->dump()));
  return block->get<std::vector<std::int64_t>>();
}

/// Returns the tensor that blocks and scales in MXFP4 stand for.
StoredTensor mxfp4_tensor(const std::string& name, const StoredTensor& blocks,
                          const StoredTensor& scales, const std::string& folder) {
  auto shape = blocks.shape;
  validate(blocks.dtype == "U8" && scales.dtype == "U8" && shape.size() >= 2 &&
               shape.back() == mxfp4_block / 2,
           "{}: '{}' is {} ({}), and its scales {}; MXFP4 has bytes, 16 in a block", folder,
           shown(blocks.name), excerpt(blocks.dtype), fmt::join(shape, ", "),
           excerpt(scales.dtype));
  shape.pop_back();
  validate(scales.shape == shape, "{}: '{}' has shape ({}), but '{}' has ({}) blocks", folder,
           shown(scales.name), fmt::join(scales.shape, ", "), shown(blocks.name),
           fmt::join(shape, ", "));
  shape.back() *= mxfp4_block;
  return {name, std::string(name_of(StoredType::bf16)), std::move(shape)};
}

}  // namespace

HfWeights::HfWeights(std::filesystem::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  validate(std::filesystem::is_directory(folder_, error), "{} is not a folder", folder_.string());
  block_ = block_shape(folder_);
  const auto index = folder_ / index_name;
  if (std::filesystem::exists(folder_ / whole_name, error)) {
    files_ = {whole_name};
    open_.resize(1);
    open_[0] = std::make_unique<SafetensorsFile>(folder_ / files_[0]);
    for (const auto& tensor : open_[0]->tensors()) file_of_[tensor.name] = 0;
    find_mxfp4();
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
  find_mxfp4();
}

void HfWeights::find_mxfp4() {
  for (const auto& [name, file] : file_of_) {
    if (!name.ends_with(blocks_suffix)) continue;
    auto whole = name.substr(0, name.size() - blocks_suffix.size());
    if (file_of_.contains(whole + std::string(scales_suffix)) && !file_of_.contains(whole))
      mxfp4_.try_emplace(std::move(whole));
  }
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
  for (const auto& [name, tensor] : mxfp4_) names.push_back(name);
  for (const auto& [name, place] : file_of_) {
    const bool is_part = (name.ends_with(blocks_suffix) || name.ends_with(scales_suffix)) &&
                         is_mxfp4(name.substr(0, name.size() - blocks_suffix.size()));
    if (!is_part) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

const StoredTensor& HfWeights::tensor(const std::string& name) const {
  if (const auto found = mxfp4_.find(name); found != mxfp4_.end()) {
    if (!found->second)
      found->second = mxfp4_tensor(name, tensor(name + std::string(blocks_suffix)),
                                   tensor(name + std::string(scales_suffix)), folder_.string());
    return *found->second;
  }
  const auto place = file_of_.find(name);
  validate(place != file_of_.end(), "{} has no tensor '{}'", folder_.string(), name);
  return *file(place->second).find(name);
}

void HfWeights::read(const std::string& name, std::int64_t begin, std::span<float> values) const {
  if (is_mxfp4(name)) return read_mxfp4(name, begin, values);
  const auto& stored = tensor(name);
  file(file_of_.at(name)).read(stored, begin, values);
  if (const auto scales = scales_of(name)) multiply(*scales, begin, values);
}

/// Reads the blocks that hold the values.
void HfWeights::read_mxfp4(const std::string& name, std::int64_t begin,
                           std::span<float> values) const {
  if (values.empty()) return;
  const auto first = begin / mxfp4_block, end = (begin + std::ssize(values) - 1) / mxfp4_block + 1;
  std::vector<std::uint8_t> scales(static_cast<std::size_t>(end - first));
  std::vector<std::uint8_t> blocks(scales.size() * mxfp4_block / 2);
  read_bytes(name + std::string(scales_suffix), first, scales);
  read_bytes(name + std::string(blocks_suffix), first * mxfp4_block / 2, blocks);
  std::vector<float> whole(scales.size() * mxfp4_block);
  from_mxfp4(blocks.data(), scales.data(), whole);
  std::copy_n(whole.begin() + begin - first * mxfp4_block, values.size(), values.begin());
}

bool HfWeights::is_scale(const std::string& name) const {
  const auto is_float8 = [&](const std::string& weight) {
    return has(weight) && stored_type(tensor(weight).dtype) == StoredType::f8_e4m3;
  };
  if (name.ends_with(activation_scale))
    return is_float8(name.substr(0, name.size() - activation_scale.size()) + ".weight");
  return name.ends_with(scale_suffix) &&
         is_float8(name.substr(0, name.size() - scale_suffix.size()));
}

std::optional<HfWeights::Scales> HfWeights::scales_of(const std::string& name) const {
  const auto& matrix = tensor(name);
  const auto scales = name + std::string(scale_suffix);
  if (stored_type(matrix.dtype) != StoredType::f8_e4m3 || !has(scales)) return std::nullopt;
  const auto& stored = tensor(scales);
  const auto where = [&] { return fmt::format("{}: '{}'", folder_.string(), shown(scales)); };
  validate(matrix.shape.size() == 2, "{}: there are scales, but '{}' is no matrix", where(),
           shown(name));
  validate(stored_type(stored.dtype) != StoredType::f8_e4m3, "{} is F8_E4M3; scales have more bits",
           where());
  const auto rows = matrix.shape[0], cols = matrix.shape[1];
  if (stored.numel() == 1) return Scales{scales, rows, cols, rows, cols};
  const auto blocks = [](std::int64_t size, std::int64_t block) {
    return std::max<std::int64_t>(1, (size + block - 1) / block);
  };
  validate(stored.shape.size() == 2 && stored.numel() > 0, "{} has {} dims; it needs two", where(),
           stored.shape.size());
  const auto block_rows = block_.empty() ? blocks(rows, stored.shape[0]) : block_[0];
  const auto block_cols = block_.empty() ? blocks(cols, stored.shape[1]) : block_[1];
  validate(
      stored.shape[0] == blocks(rows, block_rows) && stored.shape[1] == blocks(cols, block_cols),
      "{} has shape ({}, {}), but '{}' ({}, {}) has ({}, {}) blocks of ({}, {})", where(),
      stored.shape[0], stored.shape[1], shown(name), rows, cols, blocks(rows, block_rows),
      blocks(cols, block_cols), block_rows, block_cols);
  return Scales{scales, rows, cols, block_rows, block_cols};
}

/// Multiplies elements [begin, begin + values.size()) by their scales.
void HfWeights::multiply(const Scales& scales, std::int64_t begin, std::span<float> values) const {
  if (values.empty()) return;
  const auto per_row = (scales.cols + scales.block_cols - 1) / scales.block_cols;
  std::vector<float> of_row(static_cast<std::size_t>(per_row));
  std::int64_t loaded = -1;
  for (std::int64_t at = 0; at < std::ssize(values);) {
    const auto row = (begin + at) / scales.cols, col = (begin + at) % scales.cols;
    if (const auto block = row / scales.block_rows; block != loaded) {
      read(scales.name, block * per_row, of_row);
      loaded = block;
    }
    const auto block = col / scales.block_cols;
    const auto end = std::min((block + 1) * scales.block_cols, scales.cols);
    const auto count = std::min(end - col, std::ssize(values) - at);
    for (auto& value :
         values.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)))
      value *= of_row[static_cast<std::size_t>(block)];
    at += count;
  }
}

void HfWeights::read_bytes(const std::string& name, std::int64_t begin,
                           std::span<std::uint8_t> to) const {
  const auto& stored = tensor(name);
  file(file_of_.at(name)).read_bytes(stored, begin, to);
}

}  // namespace llamesh::checkpoint
