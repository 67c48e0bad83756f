#include "app/commands/commands.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "app/models/tensor_source.hpp"
#include "app/program/options.hpp"
#include "checkpoint/format/format.hpp"
#include "checkpoint/format/manifest.hpp"
#include "checkpoint/format/state_reader.hpp"
#include "checkpoint/models/hf_model.hpp"
#include "checkpoint/models/safetensors.hpp"
#include "checkpoint/store/location.hpp"
#include "core/file.hpp"
#include "core/text.hpp"
#include "data/data_files.hpp"
#include "data/loss_mask.hpp"
#include "data/mapped_file.hpp"
#include "data/megatron.hpp"
#include "data/token_ids.hpp"
#include "model/description/config_json.hpp"
#include "model/description/family.hpp"
#include "train/records/validation_record.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

/// A path's description, as text and as JSON.
struct Description {
  std::string text;
  Json json;

  /// Adds a line; names and paths in it become printable().
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    text += printable(fmt::format(format, std::forward<Args>(args)...)) + '\n';
  }
};

/// Describes a source's tensors and their total size.
void describe_tensors(const TensorSource& source, Description& to) {
  std::int64_t total = 0;
  auto tensors = Json::array();
  for (const auto& entry : source.entries()) {
    std::int64_t numel = 1;
    for (const auto size : entry.shape) numel *= size;
    total += numel;
    to.line("{:<60} {} ({}), {} elements", checkpoint::shown(entry.name),
            checkpoint::shown(entry.dtype), fmt::join(entry.shape, ", "), numel);
    tensors.push_back({{"name", entry.name},
                       {"dtype", entry.dtype},
                       {"shape", entry.shape},
                       {"elements", numel}});
  }
  to.line("");
  to.line("{}, {} elements", counted(static_cast<std::int64_t>(tensors.size()), "tensor"), total);
  to.json["elements"] = total;
  to.json["tensors"] = std::move(tensors);
}

void describe_checkpoint(const checkpoint::Location& location, Description& to) {
  const auto manifest = checkpoint::read_manifest(location.path);
  const auto& p = manifest.progress;
  to.line("checkpoint {}", location.path.string());
  to.line("  step {}, {} tokens, seed {}", p.step, p.tokens, p.seed);
  to.line("  written by llamesh {} on {} ({})", p.llamesh_version, p.mesh, p.strategy);
  to.line("  state.h5: {} bytes", manifest.file_bytes);
  if (p.base) to.line("  frozen weights: in {}", p.base->path);
  if (const auto validation = train::parse_validation(p.validation)) {
    const auto& [step, loss] = validation->latest;
    to.line("  validation loss {:.4f} after step {} ({})", loss, step, validation->set);
    to.json["validation"] = {{"set", validation->set}, {"step", step}, {"loss", loss}};
  }
  to.line("");
  to.json.update({{"step", p.step},
                  {"tokens", p.tokens},
                  {"seed", p.seed},
                  {"mesh", p.mesh},
                  {"strategy", p.strategy},
                  {"llamesh_version", p.llamesh_version},
                  {"file_bytes", manifest.file_bytes}});
  if (p.base) to.json["base_model"] = p.base->path;
  describe_tensors(*open_tensors(location), to);
}

/// Returns the validation loss at the checkpoint's own step.
std::optional<double> validation_loss(const checkpoint::TrainState& p) {
  const auto validation = train::parse_validation(p.validation);
  if (!validation || validation->latest.step != p.step) return std::nullopt;
  return validation->latest.loss;
}

/// Returns the step that the file BEST names; -1 if there is none.
std::int64_t best_of(const checkpoint::Location& location) {
  if (location.checkpoints.empty()) return -1;
  const auto file = location.checkpoints.front().parent_path() / checkpoint::best_name;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return -1;
  auto name = read_file(file, 1 << 10);
  while (name.ends_with('\n')) name.pop_back();
  return checkpoint::step_of_name(name);
}

void describe_run(const checkpoint::Location& location, Description& to) {
  to.line("{}: {}, newest first", location.path.string(),
          counted(std::ssize(location.checkpoints), "checkpoint"));
  auto checkpoints = Json::array();
  const auto best = best_of(location);
  for (const auto& path : location.checkpoints) {
    auto& one = checkpoints.emplace_back(Json{{"path", path.string()}});
    try {
      const auto manifest = checkpoint::read_manifest(path);
      const auto& p = manifest.progress;
      const auto loss = validation_loss(p);
      to.line("  {}  {:>12} tokens  {:>14} bytes{}{}", path.filename().string(), p.tokens,
              manifest.file_bytes, loss ? fmt::format("  validation loss {:.4f}", *loss) : "",
              p.step == best ? ", the best" : "");
      one.update({{"step", p.step}, {"tokens", p.tokens}, {"file_bytes", manifest.file_bytes}});
      if (loss) one["validation_loss"] = *loss;
      if (p.step == best) one["best"] = true;
    } catch (const Error& error) {
      to.line("  {}  {}", path.filename().string(), error.what());
      one["error"] = error.what();
    }
  }
  to.json["checkpoints"] = std::move(checkpoints);
}

void describe_hf_folder(const checkpoint::Location& location, Description& to) {
  to.line("Hugging Face folder {}", location.path.string());
  if (fs::exists(location.path / "config.json")) {
    const auto c = model::read_config_json(location.path);
    const auto table = model::parameter_table(c);
    to.line(
        "  {}: {} parameters, {} layers of {}, {} heads over {} of {}, "
        "vocabulary {}, {} head",
        model::family_named(c.family).architecture, table.numel(), c.num_hidden_layers,
        c.hidden_size, c.num_attention_heads, c.num_key_value_heads, c.head_dim, c.vocab_size,
        table.tied() ? "tied" : "own");
    to.json["parameters"] = table.numel();
    to.json["config"] = Json::parse(model::to_config_json(c));
    checkpoint::HfModel(location.path, c, table).check_fits();
  }
  to.line("");
  describe_tensors(*open_tensors(location), to);
}

/// Describes how many of a file's tokens are in the loss, if it has a mask.
void describe_mask(const std::string& path, std::int64_t tokens, Description& to) {
  const auto mask = data::LossMask::beside(path, tokens);
  if (!mask) return;
  const auto in_loss = std::ranges::count(mask->bytes(), 1);
  to.line("  {} of them are in the loss", in_loss);
  to.json["in_loss"] = in_loss;
}

void describe_token_file(const std::string& path, Description& to) {
  const data::MappedFile file(path);
  const auto ids = data::ids_of_token_file(file.bytes(), path, data::TokenDtype::from_header);
  const auto dtype = fmt::format("uint{}", ids.id_bytes() * 8);
  to.line("token file {}: {} tokens of {}", path, ids.size(), dtype);
  to.json.update({{"tokens", ids.size()}, {"dtype", dtype}});
  describe_mask(path, ids.size(), to);
}

void describe_megatron_pair(const std::string& path, Description& to) {
  const data::MegatronFile pair(path);
  const auto tokens = pair.ids().size(), bytes = pair.ids().id_bytes();
  const auto dtype = fmt::format("{}int{}", bytes == 4 ? "" : "u", bytes * 8);
  to.line("Megatron-LM pair {}: {} tokens of {}, {}", data::megatron_stem(path), tokens, dtype,
          counted(pair.documents(), "document"));
  to.json.update({{"tokens", tokens}, {"dtype", dtype}, {"documents", pair.documents()}});
  describe_mask(path, tokens, to);
}

Description description_of(const checkpoint::Location& location) {
  Description to;
  to.json = {{"kind", word_of(location.kind)}, {"path", location.path.string()}};
  switch (location.kind) {
    case checkpoint::PathKind::checkpoint:
      describe_checkpoint(location, to);
      break;
    case checkpoint::PathKind::run:
      describe_run(location, to);
      break;
    case checkpoint::PathKind::hf_folder:
      describe_hf_folder(location, to);
      break;
    case checkpoint::PathKind::safetensors:
      describe_tensors(*open_tensors(location), to);
      break;
    case checkpoint::PathKind::tokens:
      if (const auto path = location.path.string(); data::is_megatron(path))
        describe_megatron_pair(path, to);
      else
        describe_token_file(path, to);
      break;
  }
  return to;
}

}  // namespace

int inspect(const std::string& name, Output output) {
  const auto description = description_of(checkpoint::locate(name));
  if (output == Output::json)
    print_json(description.json);
  else
    fmt::print("{}", description.text);
  return 0;
}

void declare_inspect(CLI::App& parser, Run& chosen) {
  auto& command =
      add_command(parser, "inspect", "Describe what is at a path, in a table",
                  {"llamesh inspect runs/tiny", "llamesh inspect --json model.safetensors"});
  auto& [path, output] = runs(command, chosen, inspect);
  command
      .add_option("PATH", path,
                  std::string(tensor_source_help) + ", or a token file or Megatron-LM pair")
      ->required();
  add_json(command, output);
}

}  // namespace llamesh::app
