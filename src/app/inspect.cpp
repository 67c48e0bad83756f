#include "app/inspect.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "app/tensor_source.hpp"
#include "checkpoint/hf_config.hpp"
#include "checkpoint/hf_weights.hpp"
#include "checkpoint/reader.hpp"
#include "checkpoint/safetensors.hpp"
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

/// The tensors of a source, and how much there is of them.
void print_tensors(const TensorSource& source) {
  std::int64_t total = 0;
  for (const auto& entry : source.entries()) {
    std::int64_t numel = 1;
    for (const auto size : entry.shape) numel *= size;
    total += numel;
    fmt::print("{:<60} {} ({}), {} elements\n", checkpoint::shown(entry.name),
               checkpoint::shown(entry.dtype), fmt::join(entry.shape, ", "), numel);
  }
  fmt::print("\n{} tensors, {} elements\n", source.entries().size(), total);
}

void print_hf_folder(const fs::path& path) {
  fmt::print("Hugging Face folder {}\n", path.string());
  if (fs::exists(path / "config.json")) {
    const auto c = checkpoint::read_hf_config(path);
    const auto table = model::parameter_table(c);
    fmt::print(
        "  LlamaForCausalLM: {} parameters, {} layers of {}, {} heads over {} of {}, "
        "vocabulary {}, {} head\n",
        table.numel(), c.num_hidden_layers, c.hidden_size, c.num_attention_heads,
        c.num_key_value_heads, c.head_dim, c.vocab_size, table.tied() ? "tied" : "own");
    checkpoint::HfWeights(path).check_fits(table);
  }
  fmt::print("\n");
  print_tensors(*open_tensors(path.string()));
}

}  // namespace

int inspect(const std::string& path) {
  const fs::path at = plain_path(path);
  validate(fs::exists(at), "there is no {}", at.string());
  if (fs::exists(at / "manifest.json"))
    print_checkpoint(at);
  else if (fs::is_directory(at / "checkpoints"))
    print_list(at / "checkpoints");
  else if (fs::is_directory(at) && !checkpoint::committed_checkpoints(at).empty())
    print_list(at);
  else if (is_hf_folder(at))
    print_hf_folder(at);
  else if (fs::is_regular_file(at))
    print_tensors(*open_tensors(path));
  else
    fail(ExitCode::bad_input,
         "{} is neither a run folder nor a checkpoint (it has no manifest.json) nor a Hugging Face "
         "folder (it has no safetensors)",
         path);
  return 0;
}

}  // namespace llamesh::app
