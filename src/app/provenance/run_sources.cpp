#include "app/provenance/run_sources.hpp"

#include <chrono>
#include <filesystem>
#include <map>

#include "config/inputs.hpp"
#include "core/error.hpp"
#include "core/hash.hpp"
#include "data/fingerprint.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

SourceList sources_of(const config::Inputs& in) {
  SourceList sources;
  const auto add = [&](SourceKind kind, const std::string& path) {
    if (!path.empty()) sources.add(kind, path);
  };
  for (const auto& source : in.data.training_sources())
    for (const auto& file : source.files) add(SourceKind::training_data, file);
  for (const auto& set : in.validation_sets())
    for (const auto& file : set.files) add(SourceKind::validation_data, file);
  if (data::is_text(in.data.format) && in.data.tokenizer != "byte")
    add(SourceKind::tokenizer, in.data.tokenizer);
  add(SourceKind::model, in.pretrained.hf);
  add(SourceKind::adapters, in.pretrained.adapters);
  const auto& resume = in.checkpoint.resume;
  if (resume != "auto" && resume != "none") add(SourceKind::checkpoint, resume);
  return sources;
}

bool has_changed_since(const fs::path& path, double time) {
  std::error_code error;
  const auto written = std::chrono::file_clock::to_sys(fs::last_write_time(path, error));
  return error || std::chrono::duration<double>(written.time_since_epoch()).count() > time;
}

}  // namespace

const char* name_of(SourceKind kind) {
  switch (kind) {
    case SourceKind::training_data:
      return "training data";
    case SourceKind::validation_data:
      return "validation data";
    case SourceKind::tokenizer:
      return "tokenizer";
    case SourceKind::model:
      return "model";
    case SourceKind::adapters:
      return "adapters";
    case SourceKind::checkpoint:
      return "checkpoint of a run";
  }
  return "";
}

const char* hash_name(SourceKind kind) {
  return kind == SourceKind::model       ? "XXH3-64 of the frozen weights"
         : kind == SourceKind::tokenizer ? "XXH3-64 of the vocabulary"
                                         : "XXH3-64 of the token ids, sampled in large token files";
}

std::optional<ConfigFacts> config_facts(const std::string& config) {
  try {
    const auto in = config::parse_inputs(config, "config.yaml");
    return ConfigFacts{.run_name = in.run.name,
                       .sources = sources_of(in),
                       .resumes_own = in.checkpoint.resume == "auto"};
  } catch (const Error&) {
    return {};
  }
}

std::size_t SourceList::add(SourceKind kind, const std::string& path) {
  const auto [found, is_new] = index_.try_emplace({kind, path}, all_.size());
  if (is_new) all_.push_back({.kind = kind, .path = path});
  return found->second;
}

void add_fingerprint(const std::string& fingerprint, SourceList& sources) {
  const auto known = data::parse_fingerprint(fingerprint);
  if (!known) return;
  for (const auto& files : known->sources)
    for (const auto& file : files) {
      if (file.path.empty()) continue;  // random tokens
      auto& source = sources.all()[sources.add(SourceKind::training_data, file.path)];
      source.tokens = file.tokens;
      source.hash = to_hex(file.hash);
    }
  for (auto& source : sources.all())
    if (source.kind == SourceKind::tokenizer && source.path == known->tokenizer)
      source.hash = to_hex(known->vocabulary);
}

void look_at_files(SourceList& sources, double read_at) {
  std::map<fs::path, std::optional<License>> licenses;  // folders may have many files
  for (auto& source : sources.all()) {
    const fs::path path = source.path;
    std::error_code ignored;
    const bool is_file = fs::is_regular_file(path, ignored);
    if (!is_file && !fs::is_directory(path, ignored)) continue;
    if (is_file && !has_changed_since(path, read_at)) {
      const auto bytes = fs::file_size(path, ignored);
      if (!ignored) source.bytes = static_cast<std::int64_t>(bytes);
    }
    if (source.kind == SourceKind::checkpoint) continue;  // a run states none
    const auto folder = !is_file ? path : path.has_parent_path() ? path.parent_path() : ".";
    const auto [found, is_new] = licenses.try_emplace(folder);
    if (is_new) found->second = license_in(folder);
    source.license = found->second;
  }
}

}  // namespace llamesh::app
