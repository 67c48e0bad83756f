#include "app/commands/commands.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <filesystem>
#include <map>

#include "app/origin.hpp"
#include "checkpoint/hf/hf_export.hpp"
#include "checkpoint/location.hpp"
#include "checkpoint/state_reader.hpp"
#include "comm/session.hpp"
#include "config/key_writer.hpp"
#include "core/build_info.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "device/buffer.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view hf_prefix = "hf:";

bool is_hf(const std::string& path) {
  return path.starts_with(hf_prefix);
}

fs::path without_prefix(const std::string& path) {
  const auto folder = path.substr(hf_prefix.size());
  validate(!folder.empty(), "'{}' does not name a folder; write hf:FOLDER", path);
  return folder;
}

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
  const auto config = checkpoint::read_manifest(checkpoint).progress.config;
  try {
    return origin_of(config);
  } catch (const std::exception& error) {
    spdlog::warn("cannot read the checkpoint's inputs ({}): no tokenizer files are copied",
                 error.what());
    return {};
  }
}

/// Finds the files that are exported with the weights, if they still exist. The tokenizer is that
/// of the run's data; where these are bytes, or ids, that of the folder from which the model came.
void find_companions(const fs::path& checkpoint, checkpoint::ExportOptions& options) {
  const auto [model, data] = origin_if_known(checkpoint);
  const auto tokenizer = data.tokenizer == "byte" ? "" : data.tokenizer;
  const bool is_there = fs::exists(fs::path(model) / "config.json");
  if (is_there) options.source = model;
  if (!tokenizer.empty() && has_tokenizer(tokenizer))
    options.tokenizer = tokenizer;
  else if (!tokenizer.empty())
    spdlog::warn(
        "the tokenizer {} no longer exists (looking from {}): no tokenizer files are copied",
        tokenizer, fs::current_path().string());
  else if (is_there)
    options.tokenizer = model;
  else if (!model.empty())
    spdlog::warn("{} no longer exists: no tokenizer files are copied", model);
}

/// "5GB", "500MB", "2GiB", "4096" in bytes, as transformers reads them. Throws a user error for
/// anything else.
std::int64_t bytes_of_size(const std::string& text) {
  constexpr std::array<std::pair<std::string_view, std::int64_t>, 8> units{{{"", 1},
                                                                            {"B", 1},
                                                                            {"KB", 1'000},
                                                                            {"MB", 1'000'000},
                                                                            {"GB", 1'000'000'000},
                                                                            {"KiB", 1 << 10},
                                                                            {"MiB", 1 << 20},
                                                                            {"GiB", 1 << 30}}};
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  for (const auto& [name, bytes] : units)
    if (error == std::errc{} && unit == name && number > 0 &&
        !__builtin_mul_overflow(number, bytes, &number))
      return number;
  fail(ExitCode::bad_input,
       "--max-shard-size '{}' is not a valid size; write it like 5GB, 500MB or 2GiB", text);
}

void export_folder(const fs::path& from, const ConvertArguments& arguments,
                   const comm::Communicator& world) {
  checkpoint::ExportOptions options;
  options.type = type_of(arguments.dtype);
  options.max_shard_bytes = bytes_of_size(arguments.max_shard_size);
  comm::agree(world, [&] {
    if (world.rank() == 0) find_companions(from, options);  // it writes them, too
  });
  checkpoint::export_hf(from, without_prefix(arguments.to), options, world);
}

void import_folder(const fs::path& from, const ConvertArguments& arguments,
                   const comm::Communicator& world) {
  device::advise_on_memory("use more ranks, which share the model");
  const auto folder = fs::absolute(from).lexically_normal();
  // So that an export finds the tokenizer again.
  const auto config = fmt::format("model:\n  hf: {}\n", config::yaml_word(folder.string()));
  checkpoint::import_hf(folder, arguments.to, config, version(), world);
}

}  // namespace

int convert(const ConvertArguments& arguments) {
  const comm::MpiSession session;
  setup_logging();
  const auto& world = session.world();
  const bool exports = is_hf(arguments.to);
  const fs::path from = comm::on_rank_0(world, [&] {
    const auto location = checkpoint::locate(arguments.from);
    validate((location.kind == checkpoint::PathKind::hf_folder) != exports,
             "one of --from '{}' and --to '{}' must be hf:FOLDER, the other a checkpoint",
             arguments.from, arguments.to);
    const auto target = exports ? without_prefix(arguments.to) : fs::path(arguments.to);
    validate(target != "-", "--to '{}' is a folder, which cannot go to standard output",
             arguments.to);
    type_of(arguments.dtype);
    bytes_of_size(arguments.max_shard_size);
    return (exports ? checkpoint::newest_good(location) : location.path).string();
  });
  if (exports)
    export_folder(from, arguments, world);
  else
    import_folder(from, arguments, world);
  if (world.rank() == 0) spdlog::info("{} -> {}", arguments.from, arguments.to);
  return 0;
}

}  // namespace llamesh::app
