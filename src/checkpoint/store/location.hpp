#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace llamesh::checkpoint {

enum class PathKind : std::uint8_t {
  checkpoint,   ///< folder with manifest.json and state.h5, or the remains of one
  run,          ///< run folder, or its checkpoints folder
  hf_folder,    ///< weights or config.json, as written by Hugging Face's save_pretrained()
  safetensors,  ///< single .safetensors file
  tokens,       ///< token file that states its dtype, or a file of a Megatron-LM pair
};

/// Returns "checkpoint", "run", "hf", "safetensors" or "tokens".
std::string_view word_of(PathKind kind);

/// A path given by the user for a model, a checkpoint or data.
struct Location {
  PathKind kind;
  std::filesystem::path path;  ///< without "hf:"
  /// For a run: its committed checkpoints, newest first, not verified. For a checkpoint: itself.
  std::vector<std::filesystem::path> checkpoints = {};
};

/// Determines what `name` is; the prefix "hf:" makes it a Hugging Face folder. Used by every
/// command and input. Runs on one process. Throws a user error if nothing is there, or if it is not
/// recognized.
Location locate(const std::string& name);

/// Returns true for a PEFT folder, which holds adapters but no model.
bool holds_adapters_only(const std::filesystem::path& folder);

/// Removes the optional "hf:" prefix for a Hugging Face folder.
std::string without_hf_prefix(const std::string& name);

/// Returns the checkpoint itself, or the newest good one in a run. If a run has several, they are
/// verified newest first, but only datasets whose names begin with `group`; a damaged one is logged
/// as a warning. Throws a user error if no good checkpoint is left.
std::filesystem::path newest_good(const Location& location, std::string_view group = "");

/// Returns the checkpoints for a path in `checkpoint.resume`, in the order to try them. Throws a
/// user error if the path is anything else.
std::vector<std::filesystem::path> checkpoints_to_resume(const std::string& path);

}  // namespace llamesh::checkpoint
