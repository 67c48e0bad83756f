#include "app/commands/commands.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "app/models/tensor_source.hpp"
#include "app/program/options.hpp"
#include "checkpoint/format/state_reader.hpp"
#include "checkpoint/models/hf_model.hpp"
#include "checkpoint/models/hf_weights.hpp"
#include "checkpoint/models/safetensors.hpp"
#include "checkpoint/store/location.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "model/description/config_json.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;
using checkpoint::PathKind;

/// Returns the faults in a Hugging Face folder or .safetensors file, one line each.
std::vector<std::string> find_faults(const checkpoint::Location& location) {
  std::vector<std::string> faults;
  const auto noting = [&](const auto& work) {
    try {
      work();
    } catch (const Error& error) {
      faults.emplace_back(error.what());
    }
  };
  noting([&] {
    if (location.kind != PathKind::hf_folder) return;
    const auto config = model::read_config_json(location.path);
    const auto table = model::parameter_table(config);
    if (const auto index = checkpoint::HfWeights(location.path).unread_index(); !index.empty())
      spdlog::warn(
          "{} has both model.safetensors and {}; as transformers does, llamesh ignores the index "
          "and its files: remove one of the two",
          location.path.string(), index);
    const checkpoint::HfModel stored(location.path, config, table);
    stored.check_fits();
    stored.check_stored_head();
  });
  noting([&] {
    const auto source = open_tensors(location);
    for (const auto& entry : source->entries())
      noting([&] {
        const auto values = source->load(entry);
        const auto bad =
            std::ranges::count_if(values, [](float value) { return !std::isfinite(value); });
        if (bad > 0)
          faults.push_back(fmt::format("{}: {} of {} elements are not finite",
                                       checkpoint::shown(entry.name), bad, values.size()));
      });
  });
  // Both checks find a damaged file.
  faults.erase(std::unique(faults.begin(), faults.end()), faults.end());
  return faults;
}

/// Returns the damage in a checkpoint, and of the base model that holds its frozen weights.
std::vector<std::string> find_damage_with_base(const fs::path& checkpoint) {
  auto damage = checkpoint::find_damage(checkpoint);
  if (!damage.empty()) return damage;
  try {
    auto manifest = checkpoint::read_manifest(checkpoint);
    if (!manifest.progress.base) return {};
    const auto config =
        model::parse_config_json(manifest.progress.model_config, checkpoint.string());
    const auto table = model::parameter_table(config);
    checkpoint::open_model(checkpoint, std::move(manifest), table);
  } catch (const Error& error) {
    damage.emplace_back(error.what());
  }
  return damage;
}

}  // namespace

int verify(const std::string& name, Output output) {
  auto location = checkpoint::locate(name);
  validate(location.kind != PathKind::tokens,
           "{} is a token file; verify takes a checkpoint, a run folder, a Hugging Face folder or "
           "a .safetensors file",
           location.path.string());
  if (location.kind == PathKind::run) {
    validate(!location.checkpoints.empty(),
             "{} has no checkpoint yet; verify it after its first save", location.path.string());
    location.kind = PathKind::checkpoint;
    location.path = location.checkpoints.front();
  }
  const auto path = location.path.string();
  const auto damage = location.kind == PathKind::checkpoint ? find_damage_with_base(location.path)
                                                            : find_faults(location);
  if (output == Output::json) {
    print_json({{"kind", word_of(location.kind)},
                {"path", path},
                {"good", damage.empty()},
                {"damage", damage}});
  } else {
    for (const auto& line : damage) fmt::print("{}\n", printable(line));
    if (damage.empty()) fmt::print("{}: all good\n", printable(path));
  }
  return static_cast<int>(damage.empty() ? ExitCode::done : ExitCode::io_failure);
}

void declare_verify(CLI::App& parser, Run& chosen) {
  auto& command = add_command(
      parser, "verify",
      "Check every byte of a checkpoint, or every tensor; exit 0 only if all are good",
      {"llamesh verify runs/tiny", "llamesh verify --json runs/tiny/checkpoints/step_00000020"});
  auto& [path, output] = runs(command, chosen, verify);
  command
      .add_option("PATH", path,
                  std::string(tensor_source_help) + "; of a run the newest checkpoint")
      ->required();
  add_json(command, output);
}

}  // namespace llamesh::app
