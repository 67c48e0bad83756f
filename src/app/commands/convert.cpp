#include "app/commands/commands.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <utility>

#include "app/models/end_tokens.hpp"
#include "app/models/origin.hpp"
#include "app/program/options.hpp"
#include "checkpoint/format/state_reader.hpp"
#include "checkpoint/models/hf_export.hpp"
#include "checkpoint/models/hf_new_folder.hpp"
#include "checkpoint/models/peft_folder.hpp"
#include "checkpoint/store/location.hpp"
#include "comm/mpi/session.hpp"
#include "config/key_writer.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "core/process.hpp"
#include "core/text.hpp"
#include "data/chat_template.hpp"
#include "device/buffer.hpp"
#include "model/description/config_json.hpp"
#include "optim/optimizer.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

struct ConvertArguments {
  std::string from;            ///< checkpoint, run folder, or Hugging Face folder
  std::string to;              ///< new hf:FOLDER, or new checkpoint
  std::string dtype = "fp32";  ///< for an exported folder: fp32, bf16, fp16
  std::string max_shard_size = "5GB";
  bool merge = false;      ///< export the model with its adapters merged, not the adapters alone
  bool text_only = false;  ///< export the language model without the source's other parts
};

checkpoint::StoredType type_of(const std::string& dtype) {
  const std::map<std::string, checkpoint::StoredType> types = {
      {"fp32", checkpoint::StoredType::f32},
      {"bf16", checkpoint::StoredType::bf16},
      {"fp16", checkpoint::StoredType::f16}};
  const auto found = types.find(dtype);
  validate(found != types.end(), "--dtype '{}' is unknown; allowed: fp32, bf16, fp16", dtype);
  return found->second;
}

Origin origin_if_known(const fs::path& checkpoint) {
  const auto progress = checkpoint::read_manifest(checkpoint).progress;
  try {
    return origin_of(checkpoint, progress);
  } catch (const std::exception& error) {
    spdlog::warn("cannot read the checkpoint's inputs ({}); copy the tokenizer files yourself",
                 error.what());
    return {};
  }
}

bool has_lora(const fs::path& checkpoint) {
  const auto text = checkpoint::read_manifest(checkpoint).progress.model_config;
  return model::parse_config_json(text, checkpoint.string()).lora.has_value();
}

/// Finds the files to export with the weights, if they still exist. The tokenizer is that of the
/// run's data, or of the folder that the model came from if the data are bytes or ids.
void find_companions(const Origin& origin, const std::string& to,
                     checkpoint::ExportOptions& options) {
  const auto& [model, data] = origin;
  const auto tokenizer = data.tokenizer == "byte" ? "" : data.tokenizer;
  const bool is_there = fs::exists(fs::path(model) / "config.json");
  if (is_there) options.source = model;
  if (!tokenizer.empty() && has_tokenizer(tokenizer))
    options.tokenizer = tokenizer;
  else if (!tokenizer.empty())
    spdlog::warn("the tokenizer {} no longer exists (looking from {}); copy its files yourself",
                 tokenizer, fs::current_path().string());
  else if (is_there && has_tokenizer(model))
    options.tokenizer = model;
  else if (data.tokenizer == "byte" && data::is_text(data.format))
    spdlog::info(
        "the run's tokenizer is byte, which has no file: llamesh generate {} --tokenizer byte "
        "--prompt TEXT",
        shell_word(to));
  else if (!model.empty())
    spdlog::warn("{} no longer exists; copy the tokenizer files yourself", model);
}

/// Finds the tokens that begin and end this model's text, for the folder's config files.
void find_special_tokens(const data::DataOptions& data, checkpoint::ExportOptions& options) {
  options.positions = data.sequence_length;
  if (options.tokenizer.empty()) return;
  try {
    const auto tokenizer = tokenizer::open_tokenizer(options.tokenizer.string());
    options.bos = tokenizer->bos();
    options.end_tokens = end_tokens(*tokenizer, data, options.source.string());
  } catch (const Error& error) {
    spdlog::warn("cannot determine the end-of-text tokens: {}; add eos_token_id to config.json",
                 error.what());
  }
}

/// Finds the text of the chat template that the run was trained with, unless it is built in. Warns
/// if the new folder gets another one.
void find_chat_template(const data::DataOptions& data, checkpoint::ExportOptions& options) {
  if (options.tokenizer.empty() || data.chat_template == data::ChatTemplate::automatic) return;
  try {
    if (auto jinja = data::jinja_template_of(data)) {
      options.chat_template = std::move(jinja->text);
      return;
    }
    data::DataOptions of_folder;
    of_folder.tokenizer = options.tokenizer.string();
    const auto exported = data::conversation_options(of_folder).chat_template;
    if (exported != data.chat_template)
      spdlog::warn(
          "the run was trained with the chat template {}, and the folder gets that of {}, "
          "{}; replace it there",
          data::name_of(data.chat_template), of_folder.tokenizer, data::name_of(exported));
  } catch (const Error& error) {
    spdlog::warn("{}", error.what());
  }
}

std::int64_t max_shard_bytes(const std::string& text) {
  const auto bytes = parse_byte_size(text);
  validate(bytes.value_or(0) > 0,
           "--max-shard-size '{}' is not a valid size; write it like 5GB, 500MB or 2GiB", text);
  return *bytes;
}

void export_folder(const fs::path& from, const ConvertArguments& arguments,
                   const comm::Communicator& world) {
  checkpoint::ExportOptions options;
  options.type = type_of(arguments.dtype);
  options.max_shard_bytes = max_shard_bytes(arguments.max_shard_size);
  const auto target = checkpoint::without_hf_prefix(arguments.to);
  const bool has_adapters =
      comm::on_rank_0(world, [&] {
        const bool found = has_lora(from);
        validate(found || !arguments.merge, "--merge: {} has no adapters to merge; leave it out",
                 from.string());
        return std::string(found ? "yes" : "no");
      }) == "yes";
  if (has_adapters && !arguments.merge) {
    const auto base = comm::on_rank_0(world, [&] { return origin_if_known(from).hf; });
    return checkpoint::export_adapters(from, target, options.type, base, world);
  }
  comm::agree(world, [&] {
    if (world.rank() != 0) return;  // rank 0 writes them
    const auto origin = origin_if_known(from);
    find_companions(origin, arguments.to, options);
    find_special_tokens(origin.data, options);
    find_chat_template(origin.data, options);
  });
  options.source = comm::on_rank_0(world, [&] { return options.source.string(); });
  options.keeps_other_parts = !options.source.empty() && !arguments.text_only;
  checkpoint::export_hf(from, target, options, world);
}

void import_folder(const fs::path& from, const ConvertArguments& arguments,
                   const comm::Communicator& world) {
  device::advise_on_memory("use more ranks, which share the model");
  const auto folder = fs::absolute(from).lexically_normal();
  // Lets an export find the tokenizer again.
  const auto config = fmt::format("model:\n  hf: {}\n", config::yaml_word(folder.string()));
  std::vector<std::string> moments;
  for (const auto& moment : optim::moments_of({})) moments.push_back(moment.name);
  checkpoint::import_hf(folder, arguments.to, moments, config, version(), world);
}

/// Returns "import" for a Hugging Face folder to a checkpoint, or "export" for a checkpoint. Throws
/// a user error if the arguments do not fit.
std::string direction_of(const ConvertArguments& arguments) {
  const auto source = checkpoint::without_hf_prefix(arguments.from);
  validate(!checkpoint::holds_adapters_only(source),
           "--from '{}' holds adapters only; to merge them with their base model, start a run from "
           "both (model.hf, model.lora.from={}, train.steps=0), then convert it with --merge",
           arguments.from, shell_word(source));
  const bool imports = checkpoint::locate(arguments.from).kind == checkpoint::PathKind::hf_folder;
  validate(!imports || !arguments.to.starts_with("hf:"),
           "--from '{}' is a Hugging Face folder, so --to '{}' must be a new checkpoint; write it "
           "without hf:",
           arguments.from, arguments.to);
  const fs::path target = checkpoint::without_hf_prefix(arguments.to);
  validate(!imports || !arguments.merge,
           "--merge is for a checkpoint, but '{}' is a Hugging Face folder; leave it out",
           arguments.from);
  validate(!target.empty() && target != "-", "--to '{}' does not name a folder; give a new one",
           arguments.to);
  checkpoint::check_is_new(target);
  type_of(arguments.dtype);
  max_shard_bytes(arguments.max_shard_size);
  return imports ? "import" : "export";
}

/// Converts a checkpoint to a Hugging Face folder, or one with adapters to a PEFT folder, or such a
/// folder to a checkpoint at step 0. One process is enough; under mpirun all ranks share the work.
int convert(const ConvertArguments& arguments) {
  const comm::MpiSession session(comm::WithoutLauncher::one_rank);
  setup_logging();
  const auto& world = session.world();
  const bool imports = comm::on_rank_0(world, [&] { return direction_of(arguments); }) == "import";
  const fs::path from = comm::on_rank_0(world, [&] {
    const auto location = checkpoint::locate(arguments.from);
    return (imports ? location.path : checkpoint::newest_good(location)).string();
  });
  if (imports)
    import_folder(from, arguments, world);
  else
    export_folder(from, arguments, world);
  if (world.rank() == 0) spdlog::info("{} -> {}", arguments.from, arguments.to);
  return 0;
}

}  // namespace

void declare_convert(CLI::App& parser, Run& chosen) {
  auto& command =
      add_command(parser, "convert",
                  "Convert a checkpoint to a Hugging Face folder, or back (also under mpirun)",
                  {"llamesh convert --from runs/tiny --to FOLDER --dtype bf16",
                   "mpirun -n 8 llamesh convert --from FOLDER --to CHECKPOINT"});
  auto& [to] = runs(command, chosen, convert);
  command.add_option("--from", to.from, "A checkpoint or run folder, or a Hugging Face folder")
      ->required();
  command
      .add_option("--to", to.to,
                  "A new Hugging Face folder from a checkpoint, or a new checkpoint from a folder")
      ->required();
  command.add_option("--dtype", to.dtype,
                     "Dtype of the Hugging Face folder: fp32 (the default), bf16, fp16");
  command.add_option("--max-shard-size", to.max_shard_size,
                     "Largest file of the folder, e.g. 500MB (default 5GB)");
  command.add_flag("--merge", to.merge,
                   "From a run with LoRA: the whole model with its adapters merged (default: the "
                   "adapters as a PEFT folder)");
  command.add_flag("--text-only", to.text_only,
                   "From a model that takes images, too: its language model alone (default: with "
                   "its other parts, unchanged)");
}

}  // namespace llamesh::app
