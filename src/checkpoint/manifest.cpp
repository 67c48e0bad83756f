#include "checkpoint/manifest.hpp"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>

#include "core/error.hpp"
#include "core/hash.hpp"

namespace llamesh::checkpoint {
namespace {

using nlohmann::json;

constexpr std::size_t most_digits = 18;  // of a step in a name

/// The first line: opens the object, and seals the rest of the text.
std::string seal(std::string_view rest) {
  return fmt::format("{{\"checksum\": \"{:016x}\",\n", hash_of(rest.data(), rest.size()));
}

std::string hex(std::uint64_t number) {
  return fmt::format("{:016x}", number);
}

std::uint64_t from_hex(const std::string& text) {
  return std::stoull(text, nullptr, 16);
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
  entry.shape = from.at("shape").get<std::vector<std::int64_t>>();
  entry.offset = from.at("offset");
  for (const auto& s : from.at("segments"))
    entry.segments.push_back({s.at(0), s.at(1), from_hex(s.at(2))});
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
  p.step = from.at("step");
  p.tokens = from.at("tokens");
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
    for (const auto size : d.shape) ok = ok && size > 0 && size < (std::int64_t{1} << 31U);
    for (const auto& s : d.segments) {
      ok = ok && s.begin == at && s.count > 0 && s.count <= d.numel() - at;
      at += ok ? s.count : 0;
    }
    ok = ok && at == d.numel() && d.offset >= 0 && d.offset <= manifest.file_bytes &&
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
    const std::int64_t version = body.at("format_version");
    validate(
        version <= format_version,
        "the checkpoint has format_version {}, this llamesh reads up to {}; use a newer llamesh",
        version, format_version);
    Manifest manifest;
    manifest.progress = progress_from(body.at("progress"));
    manifest.file_bytes = body.at("file_bytes");
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
