#include "checkpoint/store/location.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include "checkpoint/format/format.hpp"
#include "checkpoint/format/state_reader.hpp"
#include "checkpoint/store/store.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "data/data_files.hpp"
#include "data/mapped_file.hpp"
#include "data/token_ids.hpp"
#include "model/description/lora.hpp"

namespace llamesh::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view hf_prefix = "hf:";

bool has_any(const fs::path& folder, std::initializer_list<const char*> names) {
  std::error_code error;
  return std::ranges::any_of(names, [&](auto name) { return fs::exists(folder / name, error); });
}

bool is_hf_folder(const fs::path& folder) {
  return has_any(folder, {"model.safetensors", "model.safetensors.index.json", "config.json"});
}

/// Recognizes a safetensors file by its name, or by the JSON after its first 8 bytes.
PathKind kind_of_file(const fs::path& path) {
  if (data::is_megatron(path.string())) return PathKind::tokens;
  const data::MappedFile file(path.string());
  if (data::is_token_file(file.bytes())) return PathKind::tokens;
  validate(
      path.extension() == ".safetensors" || (file.bytes().size() > 8 && file.bytes()[8] == '{'),
      "{} is neither a .safetensors file, nor a token file with llm.c's or NumPy's header, nor a "
      "file of a Megatron-LM pair",
      path.string());
  return PathKind::safetensors;
}

}  // namespace

std::string_view word_of(PathKind kind) {
  constexpr std::array<std::string_view, 5> words{"checkpoint", "run", "hf", "safetensors",
                                                  "tokens"};
  return words[static_cast<std::size_t>(kind)];
}

std::string without_hf_prefix(const std::string& name) {
  return name.starts_with(hf_prefix) ? name.substr(hf_prefix.size()) : name;
}

bool holds_adapters_only(const fs::path& folder) {
  return model::is_peft_folder(folder) && !is_hf_folder(folder);
}

Location locate(const std::string& name) {
  const fs::path path = without_hf_prefix(name);
  validate(!path.empty(),
           "'{}' does not name a folder; write hf:FOLDER, or the path of a checkpoint", name);
  validate(fs::exists(path), "{} does not exist{}", path.string(), did_you_mean_path(path));
  validate(!holds_adapters_only(path),
           "{} holds adapters only; name its file adapter_model.safetensors", path.string());
  if (name.starts_with(hf_prefix)) {
    validate(is_hf_folder(path),
             "{} is not a Hugging Face folder: it has neither config.json nor .safetensors files",
             path.string());
    return {PathKind::hf_folder, path};
  }
  if (!fs::is_directory(path)) return {kind_of_file(path), path};
  if (has_any(path, {manifest_name, state_name})) return {PathKind::checkpoint, path, {path}};
  if (is_hf_folder(path)) return {PathKind::hf_folder, path};
  if (fs::is_directory(path / "checkpoints"))
    return {PathKind::run, path, committed_checkpoints(path / "checkpoints")};
  auto checkpoints = committed_checkpoints(path);
  validate(!checkpoints.empty(),
           "{} is neither a run folder nor a checkpoint (it has no manifest.json) nor a Hugging "
           "Face folder (it has no safetensors)",
           path.string());
  return {PathKind::run, path, std::move(checkpoints)};
}

fs::path newest_good(const Location& location, std::string_view group) {
  const auto path = location.path.string();
  validate(location.kind == PathKind::run || location.kind == PathKind::checkpoint,
           "{} is neither a run folder nor a checkpoint", path);
  validate(!location.checkpoints.empty(), "{} has no checkpoint yet", path);
  // Everything read from a checkpoint is verified anyway: verifying first only pays if there is a
  // second one to fall back to.
  if (location.checkpoints.size() == 1) return location.checkpoints.front();
  for (const auto& checkpoint : location.checkpoints) {
    const auto damage = find_damage(checkpoint, group);
    if (damage.empty()) return checkpoint;
    spdlog::warn("checkpoint {} is not used: {}", checkpoint.string(), damage.front());
  }
  fail(ExitCode::bad_input, "none of the {} checkpoints of {} is good; see the warnings above",
       location.checkpoints.size(), path);
}

std::vector<fs::path> checkpoints_to_resume(const std::string& path) {
  std::error_code error;
  const auto plain = without_hf_prefix(path);
  validate(fs::exists(plain, error), "checkpoint.resume: {} does not exist{}", plain,
           did_you_mean_path(plain));
  validate(!holds_adapters_only(plain),
           "checkpoint.resume: {0} holds adapters only; start from them by model.lora.from={0}",
           plain);
  auto location = locate(path);
  validate(location.kind != PathKind::hf_folder,
           "checkpoint.resume: {} is a Hugging Face folder, which has no optimizer state; start "
           "from its weights by model.hf={}",
           plain, plain);
  validate(location.kind == PathKind::run || location.kind == PathKind::checkpoint,
           "checkpoint.resume: {} is neither a run folder nor a checkpoint", plain);
  validate(!location.checkpoints.empty(), "checkpoint.resume: {} has no checkpoint yet", plain);
  return std::move(location.checkpoints);
}

}  // namespace llamesh::checkpoint
