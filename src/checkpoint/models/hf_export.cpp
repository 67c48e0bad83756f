#include "checkpoint/models/hf_export.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "checkpoint/format/format.hpp"
#include "checkpoint/format/state_reader.hpp"
#include "checkpoint/models/folder_names.hpp"
#include "checkpoint/models/hf_new_folder.hpp"
#include "checkpoint/models/hf_weights.hpp"
#include "checkpoint/models/stored_model.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/json.hpp"
#include "core/log.hpp"
#include "model/description/config_json.hpp"
#include "model/description/family.hpp"

namespace llamesh::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Tokenizer files in a Hugging Face folder: vocabulary and configuration.
constexpr std::array vocabulary_files = {"tokenizer.json", "tokenizer.model", "vocab.json",
                                         "merges.txt"};
constexpr std::array companion_files = {"tokenizer_config.json", "special_tokens_map.json",
                                        "added_tokens.json", "chat_template.jinja"};

std::string torch_name(StoredType type) {
  return type == StoredType::f32 ? "float32" : type == StoredType::bf16 ? "bfloat16" : "float16";
}

/// Files beside a model that takes images, too.
constexpr std::array image_files = {"preprocessor_config.json", "video_preprocessor_config.json",
                                    "processor_config.json", "chat_template.json"};

/// What a model has beside its language model, in the folder that it came from.
struct OtherParts {
  HfWeights weights;
  std::vector<StoredTensor> tensors;
};

/// A folder's contents, in this order.
struct FolderContent {
  model::StateDict dict;
  std::vector<model::StoredConstant> constants;
  std::optional<OtherParts> parts;
};

/// Takes the other parts from the source, and its names for the language model's tensors.
void add_other_parts(FolderContent& content, const model::ModelConfig& config,
                     const model::ParameterTable& table, const fs::path& source) {
  HfWeights weights(source);
  const FolderNames names(weights, model::family_named(config.family).base_prefix,
                          table[table.embed_tokens.weight].name);
  std::vector<StoredTensor> tensors;
  for (const auto& name : weights.names()) {
    if (!names.is_of_other_part(name)) continue;
    tensors.push_back(weights.tensor(name));
    const auto type = stored_type(tensors.back().dtype);
    validate(type && type != StoredType::f8_e4m3,
             "{}: '{}' is {}; F32, BF16, F16 and F64 are kept; export with --text-only",
             source.string(), name, tensors.back().dtype);
  }
  if (tensors.empty()) return;
  for (auto& tensor : content.dict) tensor.name = names(tensor.name);
  for (auto& constant : content.constants) constant.name = names(constant.name);
  content.parts.emplace(std::move(weights), std::move(tensors));
}

/// Returns its tensors as `type`, but those that are always fp32, and other parts.
std::vector<StoredTensor> tensors_of(const FolderContent& content,
                                     const model::ParameterTable& table, StoredType type) {
  std::vector<StoredTensor> tensors;
  for (const auto& tensor : content.dict) {
    const bool fp32 = model::is_fp32(table[tensor.parts.front().parameter].role);
    const std::string dtype(name_of(fp32 ? StoredType::f32 : type));
    tensors.push_back({tensor.name, dtype, tensor.shape, 0, 0});
  }
  for (const auto& constant : content.constants)
    tensors.push_back({constant.name, std::string(name_of(type)), {}, 0, 0});
  if (content.parts)
    tensors.insert(tensors.end(), content.parts->tensors.begin(), content.parts->tensors.end());
  return tensors;
}

/// Creates the file at its full length, and writes its header.
void create(const fs::path& path, const ExportFile& file) {
  auto out = Descriptor::to_write(path, O_WRONLY | O_CREAT | O_EXCL);
  out.write(0, file.header.data(), std::ssize(file.header));
  std::error_code error;
  fs::resize_file(path, static_cast<std::uintmax_t>(file.bytes), error);
  if (error)
    fail(ExitCode::io_failure, "cannot give {} its length of {} bytes: {}", path.string(),
         file.bytes, error.message());
}

void check_room(const fs::path& folder, const std::vector<ExportFile>& files) {
  std::int64_t bytes = 0;
  for (const auto& file : files) bytes += file.bytes;
  std::error_code error;
  const auto space = fs::space(folder, error);
  if (!error && space.available < static_cast<std::uintmax_t>(bytes))
    fail(ExitCode::io_failure, "{} has {} bytes free and the export needs {}; make room",
         folder.string(), space.available, bytes);
}

/// Elements of a tensor that are assembled and written together. Every block of a transposed tensor
/// reads all rows of its parameter, and so more than it needs.
constexpr std::int64_t block_numel = std::int64_t{4} << 20U;
constexpr std::int64_t transposed_block_numel = std::int64_t{64} << 20U;

/// Indices [first, end) in a stored tensor's first dim, with row_numel values each.
struct TensorRows {
  std::int64_t first, end, row_numel;
  std::vector<float> values;
};

/// Returns which elements a part takes from its parameter for these rows; empty: none.
Box held_in(const model::StoredPart& part, const TensorRows& rows) {
  const bool is_stacked = part.in_tensor.shape.size() == 3;
  // Counts the part's indices before an index in the tensor.
  const auto before = [&](std::int64_t index) {
    const auto step = is_stacked ? 1 : part.row_step;
    const auto behind = std::max<std::int64_t>(index - part.in_tensor.begin[0], 0);
    return std::min((behind + step - 1) / step, part.in_tensor.shape[0]);
  };
  const std::size_t dim = part.transposed && !is_stacked ? 1 : 0;
  Box held = part.in_parameter;
  held.begin[dim] += before(rows.first);
  held.shape[dim] = before(rows.end) - before(rows.first);
  return held;
}

/// Fills what a part of the tensor has in these rows from the parameter.
void fill_rows(TensorRows& rows, const model::StateDictTensor& tensor,
               const model::StoredPart& part, const StoredModel& model) {
  const auto held = held_in(part, rows);
  if (held.numel() == 0) return;
  std::vector<float> values(static_cast<std::size_t>(held.numel()));
  const BoxRange range{held, 0, held.numel()};
  model.read(part.parameter, range, values);
  model::for_each_stored(part, tensor.shape, range,
                         [&](const model::StoredRun& run, std::int64_t at, std::int64_t stride) {
                           auto* to =
                               rows.values.data() + (run.begin - rows.first * rows.row_numel);
                           const auto* from = values.data() + at;
                           for (std::int64_t i = 0; i < run.count; ++i)
                             to[i * run.step] = from[i * stride];
                         });
}

void write_tensor(const StoredModel& model, const model::StateDictTensor& from, Descriptor& file,
                  const StoredTensor& to) {
  const auto type = *stored_type(to.dtype);
  const bool transposed = std::ranges::any_of(from.parts, &model::StoredPart::transposed);
  const auto row_numel = to.numel() / from.shape[0];
  const auto rows_per_block =
      std::max<std::int64_t>(1, (transposed ? transposed_block_numel : block_numel) / row_numel);
  std::vector<std::uint8_t> bytes;
  for (std::int64_t first = 0; first < from.shape[0]; first += rows_per_block) {
    const auto end = std::min(first + rows_per_block, from.shape[0]);
    TensorRows rows{first, end, row_numel, {}};
    rows.values.resize(static_cast<std::size_t>((end - first) * row_numel));
    for (const auto& part : from.parts) fill_rows(rows, from, part, model);
    bytes.resize(rows.values.size() * static_cast<std::size_t>(size_of(type)));
    const auto lost = from_floats(type, rows.values, bytes.data());
    validate(lost == 0, "{} elements of {} are too large for {}; export with --dtype {}", lost,
             to.name, to.dtype, type == StoredType::f16 ? "bf16" : "fp32");
    file.write(to.begin + first * row_numel * size_of(type), bytes.data(), std::ssize(bytes));
  }
}

void write_constant(float value, Descriptor& file, const StoredTensor& to) {
  const auto type = *stored_type(to.dtype);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size_of(type)));
  from_floats(type, {&value, 1}, bytes.data());
  file.write(to.begin, bytes.data(), std::ssize(bytes));
}

/// Copies a tensor from another part.
void copy_tensor(const HfWeights& from, Descriptor& file, const StoredTensor& to) {
  std::vector<std::uint8_t> bytes;
  for (std::int64_t first = 0; first < to.bytes; first += std::ssize(bytes)) {
    bytes.resize(static_cast<std::size_t>(std::min(block_numel, to.bytes - first)));
    from.read_bytes(to.name, first, bytes);
    file.write(to.begin + first, bytes.data(), std::ssize(bytes));
  }
}

/// Writes this rank's share of the tensors: each goes to the rank with the least load so far.
void write_my_tensors(const StoredModel& model, const FolderContent& content,
                      const fs::path& folder, const std::vector<ExportFile>& files,
                      const comm::Communicator& world) {
  std::vector<std::int64_t> load(static_cast<std::size_t>(world.size()), 0);
  auto from = content.dict.begin();  // plan_export() keeps the order
  auto constant = content.constants.begin();
  for (const auto& file : files) {
    auto out = Descriptor::to_write(folder / file.name, O_WRONLY);
    bool wrote = false;
    for (const auto& tensor : file.tensors) {
      const auto least = std::ranges::min_element(load);
      *least += tensor.bytes;
      const bool mine = least - load.begin() == world.rank();
      if (from != content.dict.end()) {
        if (mine) write_tensor(model, *from, out, tensor);
        ++from;
      } else if (constant != content.constants.end()) {
        if (mine) write_constant(constant->value, out, tensor);
        ++constant;
      } else if (mine) {
        copy_tensor(content.parts->weights, out, tensor);
      }
      wrote = wrote || mine;
    }
    if (wrote || world.rank() == 0) out.sync();
  }
}

void write_index(const fs::path& folder, const std::vector<ExportFile>& files) {
  if (files.size() == 1) return;  // transformers looks for model.safetensors first
  std::int64_t total = 0;
  auto map = nlohmann::ordered_json::object();
  for (const auto& file : files)
    for (const auto& tensor : file.tensors) {
      map[tensor.name] = file.name;
      total += tensor.bytes;
    }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  write_durably(folder / "model.safetensors.index.json", index.dump(2) + "\n");
}

bool copy_if_there(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (!fs::exists(from, error)) return false;
  write_durably(to, read_file(from, std::int64_t{1} << 30U));
  return true;
}

void copy_tokenizer(const fs::path& tokenizer, const fs::path& folder) {
  if (tokenizer.empty()) return;
  const bool whole_folder = fs::is_directory(tokenizer);
  const auto from = whole_folder ? tokenizer : tokenizer.parent_path();
  if (whole_folder)
    for (const auto* name : vocabulary_files) copy_if_there(from / name, folder / name);
  else
    copy_if_there(tokenizer, folder / ("tokenizer" + tokenizer.extension().string()));
  for (const auto* name : companion_files) copy_if_there(from / name, folder / name);
}

/// Completes the config.json of a model that did not come from a folder: its readers would
/// otherwise guess the longest sequence, and the tokens that begin and end a text.
void complete_config(nlohmann::ordered_json& json, const model::ModelConfig& config,
                     const ExportOptions& options) {
  auto positions = options.positions;
  if (const auto& rope = config.rope_scaling)  // readers derive its factor from the two lengths
    positions = std::max<std::int64_t>(
        positions,
        std::llround(rope->factor * static_cast<double>(rope->original_max_position_embeddings)));
  const bool says = json.contains("n_positions") || json.contains("max_position_embeddings");
  if (!says && positions > 0) json["max_position_embeddings"] = positions;
  if (options.bos) json["bos_token_id"] = *options.bos;
  if (!options.end_tokens.empty()) json["eos_token_id"] = options.end_tokens.front();
}

/// Makes generation end at each of these tokens. Returns false if it does already.
bool add_end_tokens(nlohmann::ordered_json& generation, const std::vector<std::int32_t>& ends) {
  auto ids = nlohmann::ordered_json::array();
  if (const auto old = generation.find("eos_token_id"); old != generation.end() && !old->is_null())
    ids = old->is_array() ? *old : nlohmann::ordered_json::array({*old});
  const auto old_size = ids.size();
  for (const auto end : ends)
    if (std::find(ids.begin(), ids.end(), end) == ids.end()) ids.push_back(end);
  if (ids.size() == old_size) return false;
  generation.erase("_from_model_config");
  generation["eos_token_id"] = ids.size() == 1 ? ids[0] : ids;
  return true;
}

/// Writes config.json, generation_config.json and the tokenizer.
void write_small_files(const fs::path& folder, const model::ModelConfig& config,
                       const ExportOptions& options) {
  std::string base;
  const auto& source = options.source;
  if (!source.empty()) base = read_file(source / "config.json", std::int64_t{1} << 20U);
  const auto text = options.keeps_other_parts
                        ? model::to_whole_config_json(config, torch_name(options.type), base)
                        : model::to_config_json(config, torch_name(options.type), base);
  auto json = parse_json_object(text, "config.json");
  if (source.empty()) complete_config(json, config, options);
  write_durably(folder / "config.json", json.dump(2) + "\n");

  const auto* const generation_file = "generation_config.json";
  nlohmann::ordered_json generation = {{"_from_model_config", true}};
  const bool copied =
      !source.empty() && copy_if_there(source / generation_file, folder / generation_file);
  if (copied)
    generation = parse_json_object(read_file(folder / generation_file, std::int64_t{1} << 20U),
                                   generation_file);
  else
    for (const auto* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
      if (json.contains(key)) generation[key] = json[key];
  if (add_end_tokens(generation, options.end_tokens) || !copied)
    write_durably(folder / generation_file, generation.dump(2) + "\n");
  copy_tokenizer(options.tokenizer, folder);
  if (!options.chat_template.empty())
    write_durably(folder / "chat_template.jinja", options.chat_template);
  if (options.keeps_other_parts)
    for (const auto* name : image_files) copy_if_there(source / name, folder / name);
}

void warn_of_refusal(const model::ModelConfig& config) {
  if (config.hidden_size % config.num_attention_heads == 0) return;
  spdlog::warn(
      "hidden_size {} is not a multiple of num_attention_heads {}: transformers refuses such a "
      "model from version 5.4 on, earlier versions load it",
      config.hidden_size, config.num_attention_heads);
}

}  // namespace

std::vector<ExportFile> plan_export(const std::vector<StoredTensor>& tensors,
                                    std::int64_t max_bytes) {
  std::vector<ExportFile> files;
  std::int64_t held = 0;
  for (const auto& tensor : tensors) {
    const auto bytes = tensor.numel() * size_of(*stored_type(tensor.dtype));
    if (files.empty() || (held > 0 && held + bytes > max_bytes)) {
      files.emplace_back();
      held = 0;
    }
    held += bytes;
    files.back().tensors.push_back(tensor);
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    auto& file = files[i];
    file.name = files.size() == 1
                    ? "model.safetensors"
                    : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
    file.header = safetensors_header(file.tensors);
    file.bytes = file.tensors.back().begin + file.tensors.back().bytes;
  }
  return files;
}

void export_hf(const fs::path& checkpoint, const fs::path& target, const ExportOptions& options,
               const comm::Communicator& world) {
  NewFolder folder(target, world);
  const auto text = comm::on_rank_0(world, [&] { return to_text(read_manifest(checkpoint)); });
  auto manifest = parse_manifest(text);
  const auto stored = model::parse_config_json(manifest.progress.model_config, "model_config");
  const auto stored_table = model::parameter_table(stored);
  const auto config = stored.base();
  const auto table = model::parameter_table(config);
  FolderContent content{
      model::state_dict(config, table), model::family_named(config.family).constants(table), {}};
  if (options.keeps_other_parts) add_other_parts(content, config, table, options.source);
  const auto files = plan_export(tensors_of(content, table, options.type), options.max_shard_bytes);
  std::unique_ptr<StoredModel> model;
  comm::agree(world, [&] {
    model = open_model(checkpoint, std::move(manifest), stored_table,
                       world.rank() == 0 ? ProveBase::yes : ProveBase::no);
    if (stored.lora) model = merge_adapters(std::move(model), stored, stored_table);
    if (world.rank() != 0) return;
    warn_of_refusal(config);
    check_room(folder.path(), files);
    for (const auto& file : files) create(folder.path() / file.name, file);
    write_index(folder.path(), files);
    write_small_files(folder.path(), config, options);
  });
  comm::agree(world, [&] { write_my_tensors(*model, content, folder.path(), files, world); });
  folder.commit();
}

}  // namespace llamesh::checkpoint
