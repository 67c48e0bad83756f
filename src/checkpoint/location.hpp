#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace llamesh::checkpoint {

enum class PathKind : std::uint8_t {
  checkpoint,   ///< a folder with manifest.json and state.h5, or what is left of one
  run,          ///< a run folder, or its folder of checkpoints
  hf_folder,    ///< weights or config.json as Hugging Face's save_pretrained() writes them
  safetensors,  ///< one such file
  tokens,       ///< a token file with llm.c's header
};

/// "checkpoint", "run", "hf", "safetensors" or "tokens".
std::string_view word_of(PathKind kind);

/// A path that a user passes as a model, a checkpoint or data.
struct Location {
  PathKind kind;
  std::filesystem::path path;  ///< without "hf:"
  /// Of a run its committed checkpoints, newest first (not verified); of a checkpoint itself.
  std::vector<std::filesystem::path> checkpoints = {};
};

/// Determines what `name` is; the prefix "hf:" makes it a Hugging Face folder. Every command and
/// input uses this. By one process. Throws a user error where there is nothing, or none of the
/// kinds.
Location locate(const std::string& name);

/// The name without the optional prefix "hf:" of a Hugging Face folder.
std::string without_hf_prefix(const std::string& name);

/// A checkpoint itself, or the newest good one of a run. Where a run has several, they are read and
/// verified newest first, of each the datasets whose names begin with `group`; one that is damaged
/// is logged as a warning. Throws a user error where no checkpoint is left.
std::filesystem::path newest_good(const Location& location, std::string_view group = "");

/// The checkpoints that `checkpoint.resume` names by a path, in the order in which they are tried.
/// Throws a user error where it names anything else.
std::vector<std::filesystem::path> checkpoints_to_resume(const std::string& path);

}  // namespace llamesh::checkpoint
