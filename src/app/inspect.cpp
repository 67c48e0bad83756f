#include "app/inspect.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "checkpoint/reader.hpp"
#include "checkpoint/store.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

void print_checkpoint(const fs::path& path) {
  const auto manifest = checkpoint::read_manifest(path);
  const auto& p = manifest.progress;
  fmt::print("checkpoint {}\n  step {}, {} tokens, seed {}\n  written by llamesh {} on {} ({})\n",
             path.string(), p.step, p.tokens, p.seed, p.llamesh_version, p.mesh, p.strategy);
  fmt::print("  state.h5: {} bytes, {} datasets\n\n", manifest.file_bytes,
             manifest.datasets.size());
  for (const auto& d : manifest.datasets)
    fmt::print("{:<60} fp32 ({}), {} elements\n", d.path, fmt::join(d.shape, ", "), d.numel());
}

void print_list(const fs::path& folder) {
  const auto checkpoints = checkpoint::committed_checkpoints(folder);
  fmt::print("{}: {} checkpoints, newest first\n", folder.string(), checkpoints.size());
  for (const auto& path : checkpoints) {
    try {
      const auto manifest = checkpoint::read_manifest(path);
      fmt::print("  {}  {:>12} tokens  {:>14} bytes\n", path.filename().string(),
                 manifest.progress.tokens, manifest.file_bytes);
    } catch (const Error& error) {
      fmt::print("  {}  {}\n", path.filename().string(), error.what());
    }
  }
}

}  // namespace

int inspect(const std::string& path) {
  const fs::path at = path;
  validate(fs::exists(at), "there is no {}", path);
  if (fs::exists(at / "manifest.json"))
    print_checkpoint(at);
  else if (fs::is_directory(at / "checkpoints"))
    print_list(at / "checkpoints");
  else if (fs::is_directory(at) && !checkpoint::committed_checkpoints(at).empty())
    print_list(at);
  else
    fail(ExitCode::bad_input,
         "{} is neither a run folder nor a checkpoint: it has no manifest.json", path);
  return 0;
}

}  // namespace llamesh::app
