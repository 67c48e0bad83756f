#include "checkpoint/format/manifest.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>

#include "checkpoint/format/format.hpp"
#include "core/error.hpp"
#include "core/hash.hpp"
#include "core/json.hpp"
#include "core/tensor.hpp"

namespace llamesh::checkpoint {
namespace {

using nlohmann::json;

constexpr std::int64_t longest_axis = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t max_axes = Tensor::max_dims;
constexpr std::int64_t max_parts = 4096;
constexpr std::size_t max_digits = 18;  // in a step's name

/// Returns the first line: it opens the object and has a checksum over the rest.
std::string seal(std::string_view rest) {
  return fmt::format("{{\"checksum\": \"{:016x}\",\n", hash_of(rest.data(), rest.size()));
}

std::uint64_t hash_from(const json& from) {
  return from_hex(from.get_ref<const std::string&>());
}

json to_json(const DatasetEntry& entry) {
  json segments = json::array();
  for (const auto& s : entry.segments) {
    segments.push_back({s.begin, s.count, to_hex(s.hash)});
    if (entry.is_cut()) segments.back().push_back(s.part);
  }
  json to = {{"path", entry.path},
             {"shape", entry.shape},
             {"offset", entry.offset},
             {"segments", std::move(segments)}};
  if (entry.is_cut())
    for (const auto& part : entry.parts) to["parts"].push_back({part.begin, part.shape});
  return to;
}

Shape shape_from(const json& from, std::int64_t least) {
  Shape shape;
  for (const auto& size : from) shape.push_back(to_integer(size, least, longest_axis));
  return shape;
}

DatasetEntry dataset_from(const json& from) {
  DatasetEntry entry;
  entry.path = from.at("path");
  entry.shape = shape_from(from.at("shape"), 1);
  entry.offset = to_integer(from.at("offset"), 0);
  if (from.contains("parts")) {
    for (const auto& part : from.at("parts"))
      entry.parts.push_back({shape_from(part.at(0), 0), shape_from(part.at(1), 1)});
  } else {
    entry.parts = {Box::whole(entry.shape)};
  }
  for (const auto& s : from.at("segments")) {
    entry.segments.push_back({to_integer(s.at(0), 0), to_integer(s.at(1), 1), hash_from(s.at(2))});
    if (entry.is_cut())
      entry.segments.back().part = static_cast<int>(to_integer(s.at(3), 0, max_parts));
  }
  return entry;
}

json to_json(const TrainState& p) {
  json to = {{"step", p.step},           {"tokens", p.tokens},
             {"seed", p.seed},           {"mesh", p.mesh},
             {"strategy", p.strategy},   {"config", p.config},
             {"model", p.model_config},  {"llamesh_version", p.llamesh_version},
             {"data", p.data},           {"bf16_products", p.bf16_products},
             {"attention", p.attention}, {"arithmetic", p.arithmetic}};
  if (p.base) to["base"] = {{"path", p.base->path}, {"hash", to_hex(p.base->hash)}};
  if (!p.validation.empty()) to["validation"] = p.validation;
  if (p.exchanges)
    to["exchanges"] = {{"units", p.exchanges->units}, {"sent_after", p.exchanges->sent_after}};
  if (p.reference)
    to["reference"] = {{"model", to_hex(p.reference->model)},
                       {"log_probs", to_hex(p.reference->log_probs)}};
  return to;
}

/// Returns read(the value of `key`). Errors name the key.
template <class Read>
auto field(const json& from, const char* key, const Read& read) try {
  const auto found = from.find(key);
  validate(found != from.end(), "there is none");
  return read(*found);
} catch (const Error& error) {
  fail(ExitCode::bad_input, "{}: {}", key, error.what());
}

std::string string_from(const json& from) {
  validate(from.is_string(), "there is {} where a string belongs", from.type_name());
  return from;
}

std::uint64_t seed_from(const json& from) {
  validate(from.is_number_unsigned(), "there is {} where an integer of 0 or more belongs",
           from.is_number() ? from.dump() : from.type_name());
  return from;
}

BaseModel base_from(const json& from) {
  return {field(from, "path", string_from),
          field(from, "hash", [](const json& hash) { return from_hex(string_from(hash)); })};
}

PairReference reference_from(const json& from) {
  const auto hash = [](const json& hex) { return from_hex(string_from(hex)); };
  return {field(from, "model", hash), field(from, "log_probs", hash)};
}

optim::PendingExchanges exchanges_from(const json& from) {
  constexpr std::int64_t max_units = 1 << 30;
  optim::PendingExchanges exchanges;
  exchanges.units =
      field(from, "units", [&](const json& units) { return to_integer(units, 0, max_units); });
  field(from, "sent_after", [&](const json& steps) {
    validate(steps.is_array(), "there is {} where a list belongs", steps.type_name());
    for (const auto& step : steps) exchanges.sent_after.push_back(to_integer(step, 0, max_step));
    return true;
  });
  return exchanges;
}

TrainState progress_from(const json& from) {
  const auto text = [&](const char* key) { return field(from, key, string_from); };
  const auto text_if_any = [&](const char* key) {
    return from.contains(key) ? text(key) : std::string();
  };
  TrainState p;
  p.step = field(from, "step", [](const json& step) { return to_integer(step, 0, max_step); });
  p.tokens = field(from, "tokens", [](const json& tokens) { return to_integer(tokens, 0); });
  p.seed = field(from, "seed", seed_from);
  p.mesh = text("mesh");
  p.strategy = text("strategy");
  p.config = text("config");
  p.model_config = text("model");
  p.llamesh_version = text("llamesh_version");
  p.data = text_if_any("data");  // absent in early checkpoints
  p.bf16_products = text_if_any("bf16_products");
  p.attention = text_if_any("attention");
  p.arithmetic = text_if_any("arithmetic");
  if (from.contains("base")) p.base = field(from, "base", base_from);
  p.validation = text_if_any("validation");
  if (from.contains("exchanges")) p.exchanges = field(from, "exchanges", exchanges_from);
  if (from.contains("reference")) p.reference = field(from, "reference", reference_from);
  return p;
}

/// Returns true if the parts are within the dataset, disjoint, and together cover it.
bool parts_tile(const DatasetEntry& d) {
  if (d.parts.empty() || std::ssize(d.parts) > max_parts) return false;
  std::int64_t left = d.numel();
  for (std::size_t i = 0; i < d.parts.size(); ++i) {
    const auto& part = d.parts[i];
    if (part.begin.size() != d.shape.size() || part.shape.size() != d.shape.size()) return false;
    for (std::size_t axis = 0; axis < d.shape.size(); ++axis)
      if (part.begin[axis] > d.shape[axis] - part.shape[axis]) return false;
    for (std::size_t j = 0; j < i; ++j)
      if (overlap(part, d.parts[j])) return false;
    left -= part.numel();
  }
  return left == 0;
}

/// Returns true if each part's segments are contiguous and cover it.
bool segments_tile(const DatasetEntry& d) {
  std::size_t part = 0;
  std::int64_t at = 0;  // within the part
  for (const auto& s : d.segments) {
    if (at == d.parts[part].numel()) {
      if (++part == d.parts.size()) return false;
      at = 0;
    }
    if (static_cast<std::size_t>(s.part) != part || s.begin != at ||
        s.count > d.parts[part].numel() - at)
      return false;
    at += s.count;
  }
  return part + 1 == d.parts.size() && at == d.parts[part].numel();
}

/// Returns true if the element count fits into int64: each size is below 2^31.
bool is_countable(const Shape& shape) {
  std::int64_t left = std::numeric_limits<std::int64_t>::max() / 4;
  for (const auto size : shape) left /= size;
  return left > 0;
}

void check_consistency(const Manifest& manifest) {
  for (const auto& d : manifest.datasets)
    validate(!d.shape.empty() && std::ssize(d.shape) <= max_axes && is_countable(d.shape) &&
                 parts_tile(d) && segments_tile(d) && d.offset <= manifest.file_bytes &&
                 d.numel() <= (manifest.file_bytes - d.offset) / 4,
             "it contradicts itself about {}", d.path);
}

Manifest manifest_from(const json& body) {
  Manifest manifest;
  manifest.progress = progress_from(body.at("progress"));
  manifest.file_bytes = to_integer(body.at("file_bytes"), 0);
  manifest.metadata_hash = hash_from(body.at("metadata_hash"));
  for (const auto& d : body.at("datasets")) manifest.datasets.push_back(dataset_from(d));
  check_consistency(manifest);
  return manifest;
}

}  // namespace

std::string name_of_step(std::int64_t step) {
  return fmt::format("step_{:08}", step);
}

std::int64_t step_of_name(std::string_view name) {
  constexpr std::string_view prefix = "step_";
  if (!name.starts_with(prefix)) return -1;
  name.remove_prefix(prefix.size());
  if (name.size() < 8 || name.size() > max_digits) return -1;
  std::int64_t step = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  return end == name.data() + name.size() && name[0] != '-' ? step : -1;
}

const DatasetEntry* Manifest::find(const std::string& path) const {
  const auto found = std::ranges::find(datasets, path, &DatasetEntry::path);
  return found == datasets.end() ? nullptr : &*found;
}

std::int64_t version_of(const std::vector<DatasetEntry>& datasets) {
  return std::ranges::any_of(datasets, &DatasetEntry::is_cut) ? 2 : 1;
}

std::int64_t version_of(const Manifest& manifest) {
  return manifest.progress.base ? 3 : version_of(manifest.datasets);
}

std::string to_text(const TrainState& state) {
  return to_json(state).dump();
}

TrainState parse_train_state(const std::string& text) try {
  return progress_from(parse_json(text, "its JSON"));
} catch (const Error& error) {
  fail(ExitCode::io_failure, "it cannot be understood: {}", error.what());
}

std::string to_text(const Manifest& manifest) {
  json datasets = json::array();
  for (const auto& entry : manifest.datasets) datasets.push_back(to_json(entry));
  const json body = {{"format_version", version_of(manifest)},
                     {"progress", to_json(manifest.progress)},
                     {"file_bytes", manifest.file_bytes},
                     {"metadata_hash", to_hex(manifest.metadata_hash)},
                     {"hash", "XXH3-64"},
                     {"datasets", std::move(datasets)}};
  const std::string rest = body.dump().substr(1) + "\n";  // the checksum's line opens the object
  return seal(rest) + rest;
}

Manifest parse_manifest(const std::string& text, const std::string& name) try {
  const std::size_t length = seal("").size();
  const auto rest = std::string_view(text).substr(std::min(length, text.size()));
  if (!text.starts_with(seal(rest)))
    fail(ExitCode::io_failure, "{} is damaged: its checksum does not match its {} bytes", name,
         text.size());
  std::int64_t version = 0;
  try {
    const json body = parse_json(text, "its text");
    version = to_integer(body.at("format_version"), 1);
    if (version <= format_version) return manifest_from(body);
  } catch (const std::bad_alloc&) {  // not damage
    throw;
  } catch (const std::exception& error) {
    fail(ExitCode::io_failure, "{} cannot be understood: {}", name, error.what());
  }
  fail(ExitCode::bad_input,
       "the checkpoint has format_version {}, this llamesh reads up to {}; use a newer llamesh",
       version, format_version);
} catch (const std::bad_alloc&) {
  fail(ExitCode::bad_input, "{}: the host has too little memory to read it", name);
}

}  // namespace llamesh::checkpoint
