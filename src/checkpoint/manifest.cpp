#include "checkpoint/manifest.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>

#include "checkpoint/format.hpp"
#include "core/error.hpp"
#include "core/hash.hpp"

namespace llamesh::checkpoint {
namespace {

using nlohmann::json;

constexpr std::int64_t longest_axis = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t most_digits = 18;  // of a step in a name
constexpr std::int64_t last_step = 999'999'999'999'999'999;

/// The first line: opens the object, and seals the rest of the text.
std::string seal(std::string_view rest) {
  return fmt::format("{{\"checksum\": \"{:016x}\",\n", hash_of(rest.data(), rest.size()));
}

std::string hex(std::uint64_t number) {
  return fmt::format("{:016x}", number);
}

std::uint64_t from_hex(const std::string& text) {
  std::uint64_t number = 0;
  const auto* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number, 16);
  if (text.size() != 16 || at != end || error != std::errc())
    fail(ExitCode::io_failure, "'{}' in manifest.json is no hash", text);
  return number;
}

/// An integer of [least, most]; the library would also take 1.5 and true for one.
std::int64_t integer(const json& from, std::int64_t least,
                     std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
  const bool ok = from.is_number_integer() &&
                  (!from.is_number_unsigned() ||
                   from.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max()) &&
                  from.get<std::int64_t>() >= least && from.get<std::int64_t>() <= most;
  if (!ok)
    fail(ExitCode::io_failure, "manifest.json has {} where an integer of {} to {} belongs",
         from.dump(), least, most);
  return from.get<std::int64_t>();
}

json to_json(const DatasetEntry& entry) {
  json segments = json::array();
  for (const auto& s : entry.segments) segments.push_back({s.begin, s.count, hex(s.hash)});
  return {{"path", entry.path},
          {"shape", entry.shape},
          {"offset", entry.offset},
          {"segments", std::move(segments)}};
}

DatasetEntry dataset_from(const json& from) {
  DatasetEntry entry;
  entry.path = from.at("path");
  for (const auto& size : from.at("shape")) entry.shape.push_back(integer(size, 1, longest_axis));
  entry.offset = integer(from.at("offset"), 0);
  for (const auto& s : from.at("segments"))
    entry.segments.push_back({integer(s.at(0), 0), integer(s.at(1), 1), from_hex(s.at(2))});
  return entry;
}

json to_json(const Progress& p) {
  return {{"step", p.step},          {"tokens", p.tokens},
          {"seed", p.seed},          {"mesh", p.mesh},
          {"strategy", p.strategy},  {"config", p.config},
          {"model", p.model_config}, {"llamesh_version", p.llamesh_version},
          {"data", p.data},          {"bf16_products", p.bf16_products}};
}

Progress progress_from(const json& from) {
  Progress p;
  p.step = integer(from.at("step"), 0, last_step);
  p.tokens = integer(from.at("tokens"), 0);
  if (!from.at("seed").is_number_unsigned())
    fail(ExitCode::io_failure, "manifest.json has {} as its seed", from.at("seed").dump());
  p.seed = from.at("seed");
  p.mesh = from.at("mesh");
  p.strategy = from.at("strategy");
  p.config = from.at("config");
  p.model_config = from.at("model");
  p.llamesh_version = from.at("llamesh_version");
  p.data = from.value("data", "");  // there was none at first
  p.bf16_products = from.value("bf16_products", "");
  return p;
}

void check_consistency(const Manifest& manifest) {
  for (const auto& d : manifest.datasets) {
    std::int64_t at = 0;
    bool ok = !d.shape.empty() && d.shape.size() <= 2;
    for (const auto& s : d.segments) {
      ok = ok && s.begin == at && s.count <= d.numel() - at;
      at += ok ? s.count : 0;
    }
    ok = ok && at == d.numel() && d.offset <= manifest.file_bytes &&
         at <= (manifest.file_bytes - d.offset) / 4;
    if (!ok) fail(ExitCode::io_failure, "the manifest contradicts itself about {}", d.path);
  }
}

}  // namespace

std::string name_of_step(std::int64_t step) {
  return fmt::format("step_{:08}", step);
}

std::int64_t step_of_name(std::string_view name) {
  constexpr std::string_view prefix = "step_";
  if (!name.starts_with(prefix)) return -1;
  name.remove_prefix(prefix.size());
  if (name.size() < 8 || name.size() > most_digits) return -1;
  std::int64_t step = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  return end == name.data() + name.size() && name[0] != '-' ? step : -1;
}

std::int64_t DatasetEntry::numel() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

const DatasetEntry* Manifest::find(const std::string& path) const {
  const auto found = std::ranges::find(datasets, path, &DatasetEntry::path);
  return found == datasets.end() ? nullptr : &*found;
}

std::string to_text(const Manifest& manifest) {
  json datasets = json::array();
  for (const auto& entry : manifest.datasets) datasets.push_back(to_json(entry));
  const json body = {{"format_version", format_version},
                     {"progress", to_json(manifest.progress)},
                     {"file_bytes", manifest.file_bytes},
                     {"metadata_hash", hex(manifest.metadata_hash)},
                     {"hash", "XXH3-64"},
                     {"datasets", std::move(datasets)}};
  const std::string rest = body.dump().substr(1) + "\n";  // the seal opens the object
  return seal(rest) + rest;
}

Manifest parse_manifest(const std::string& text) {
  const std::size_t length = seal("").size();
  const auto rest = std::string_view(text).substr(std::min(length, text.size()));
  if (!text.starts_with(seal(rest)))
    fail(ExitCode::io_failure, "manifest.json is damaged: its checksum does not fit its {} bytes",
         text.size());
  try {
    const json body = json::parse(text);
    const auto version = integer(body.at("format_version"), 1);
    validate(
        version <= format_version,
        "the checkpoint has format_version {}, this llamesh reads up to {}; use a newer llamesh",
        version, format_version);
    Manifest manifest;
    manifest.progress = progress_from(body.at("progress"));
    manifest.file_bytes = integer(body.at("file_bytes"), 0);
    manifest.metadata_hash = from_hex(body.at("metadata_hash"));
    for (const auto& d : body.at("datasets")) manifest.datasets.push_back(dataset_from(d));
    check_consistency(manifest);
    return manifest;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ExitCode::io_failure, "manifest.json cannot be understood: {}", error.what());
  }
}

}  // namespace llamesh::checkpoint
