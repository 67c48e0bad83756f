#include "app/provenance/run_facts.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>

#include "checkpoint/format/state_reader.hpp"
#include "checkpoint/store/store_folder.hpp"
#include "core/file.hpp"
#include "core/hash.hpp"
#include "core/text.hpp"
#include "train/records/run_metrics.hpp"
#include "train/setup/run_inputs.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t max_config_bytes = 16 << 20;

std::string hash_text(const std::string& bytes) {
  return to_hex(hash_of(bytes.data(), bytes.size()));
}

/// Returns a time that iso_time() can format, up to the year 9891.
std::optional<double> known_time(double seconds) {
  if (!(seconds > 0 && seconds < 2.5e11)) return {};
  return seconds;
}

std::optional<ConfigFacts> facts_if_known(const std::string& config) {
  return config.empty() ? std::nullopt : config_facts(config);
}

/// Returns the run's files that are there. A link is not its own.
std::vector<RunFile> files_in(const fs::path& folder) {
  std::vector<RunFile> files = {
      {"config.yaml", "all inputs of the newest launch", "application/yaml"},
      {"chat_template.jinja", "the model's own template for conversations", "text/plain"},
      {"metrics.jsonl", "each step's metrics, and the run's events", "application/jsonl"},
      {"log.txt", "rank 0's messages", "text/plain"},
      {"state.json", "how far the run is, and why it ended", "application/json"},
      {"report.html", "the run's metrics as charts", "text/html"}};
  std::erase_if(files, [&](RunFile& file) {
    std::error_code error;
    const auto path = folder / file.name;
    if (fs::symlink_status(path, error).type() != fs::file_type::regular) return true;
    file.bytes = static_cast<std::int64_t>(fs::file_size(path, error));
    return static_cast<bool>(error);
  });
  return files;
}

/// Checkpoints with the texts in their manifests that describe the launch.
struct Checkpoints {
  std::vector<KeptCheckpoint> kept;
  std::vector<std::string> configs;
  // As in the newest one that has them:
  std::string fingerprint;
  std::optional<checkpoint::BaseModel> base;
};

void read_checkpoint(const fs::path& path, Checkpoints& to) {
  const auto manifest = checkpoint::read_manifest(path);
  const auto& state = manifest.progress;
  to.kept.push_back({.name = path.filename().string(),
                     .step = state.step,
                     .tokens = state.tokens,
                     .state_bytes = manifest.file_bytes,
                     .manifest_hash = hash_text(
                         read_file(path / checkpoint::manifest_name, checkpoint::longest_manifest)),
                     .mesh = state.mesh,
                     .strategy = state.strategy,
                     .version = state.llamesh_version,
                     .validation = {},
                     .launch = {}});
  to.configs.push_back(state.config);
  if (!state.data.empty()) to.fingerprint = state.data;
  if (state.base) to.base = state.base;
}

/// Reads the checkpoints, oldest first. A run that is training may remove one at any moment.
Checkpoints checkpoints_in(const fs::path& folder) {
  Checkpoints read;
  auto paths = checkpoint::committed_checkpoints(folder / "checkpoints");
  std::ranges::reverse(paths);
  for (const auto& path : paths) try {
      read_checkpoint(path, read);
    } catch (const Error& error) {
      spdlog::warn("left out: {}", printable(error.what()));
    }
  return read;
}

/// Calls use(set, step, loss) for each finite validation loss after steps in (first, last].
template <class Use>
void for_each_validation(const train::RunMetrics& run, std::int64_t first, std::int64_t last,
                         const Use& use) {
  const auto visit = [&](const std::string& set, const auto& losses) {
    for (const auto& [step, loss] : losses)
      if (step > first && step <= last && std::isfinite(loss)) use(set, step, loss);
  };
  const auto name = [](const std::string& set) {
    return set.empty() ? train::default_validation_set : set;
  };
  visit(name(run.validation_set), run.validation);
  for (const auto& [set, losses] : run.other_validation) visit(name(set), losses);
}

/// Adds the steps that a launch did, up to the one from which the next launch continued.
void add_steps(const train::RunMetrics& run, std::int64_t end, LaunchFacts& launch) {
  for (auto at = run.steps.upper_bound(launch.first_step);
       at != run.steps.end() && at->first <= end; ++at) {
    launch.last_step = at->first;
    if (const auto& joules = at->second.joules) launch.joules = launch.joules.value_or(0) + *joules;
  }
  for_each_validation(run, launch.first_step, end,
                      [&](const auto& set, std::int64_t step, double loss) {
                        if (launch.validation.empty() || launch.validation.back().set != set)
                          launch.validation.push_back({set, {}});
                        launch.validation.back().at = {step, loss};
                      });
}

std::vector<LaunchFacts> launches_of(const train::RunMetrics& run) {
  std::vector<LaunchFacts> launches;
  for (std::size_t i = 0; i < run.starts.size(); ++i) {
    const auto& start = run.starts[i];
    auto& launch = launches.emplace_back();
    launch.first_step = launch.last_step = start.step;
    launch.started = known_time(start.time);
    launch.last_record = known_time(start.last_time);
    if (start.ranks >= 1 && start.ranks < 0x1p31)
      launch.ranks = static_cast<std::int64_t>(start.ranks);
    launch.mesh = start.mesh;
    launch.host = start.host;
    launch.version = start.version;
    launch.commit = start.commit;
    launch.job = start.job;
    if (start.step == 0) launch.weights = start.detail;
    const bool last = i + 1 == run.starts.size();
    add_steps(run, last ? std::numeric_limits<std::int64_t>::max() : run.starts[i + 1].step,
              launch);
  }
  return launches;
}

/// Finds the launch that wrote each checkpoint, and the losses at its step. After a resume from an
/// earlier step, a later launch has written the step again.
void describe_checkpoints(const train::RunMetrics& run, const std::optional<train::RunState>& state,
                          const std::vector<LaunchFacts>& launches,
                          std::vector<KeptCheckpoint>& kept) {
  for (auto& one : kept) {
    for (std::size_t i = 0; i < launches.size(); ++i)
      if (launches[i].first_step < one.step) one.launch = i;
    one.best = state && state->best && state->best->step == one.step;
    for_each_validation(run, one.step - 1, one.step,
                        [&](const auto& set, std::int64_t step, double loss) {
                          one.validation.push_back({set, {step, loss}});
                        });
  }
}

/// Links a launch to what its inputs name. Without its inputs, only the training data and the
/// tokenizer are known: a run refuses to resume with others.
void link_sources(const std::optional<ConfigFacts>& config, SourceList& sources,
                  LaunchFacts& launch) {
  if (config) {
    for (const auto& source : config->sources.all())
      launch.used.push_back(sources.add(source.kind, source.path));
    return;
  }
  for (std::size_t i = 0; i < sources.all().size(); ++i)
    if (const auto kind = sources.all()[i].kind;
        kind == SourceKind::training_data || kind == SourceKind::tokenizer)
      launch.used.push_back(i);
}

/// Returns true if a launch's line says that it loaded the weights in this folder.
bool has_loaded(const LaunchFacts& launch, const std::string& folder) {
  const auto words = "the weights of " + folder;
  return launch.weights == words || launch.weights.starts_with(words + " and ");
}

/// Finds the weights from outside the run that a launch began with.
void link_origin(const std::optional<ConfigFacts>& config, const SourceList& sources,
                 LaunchFacts& launch) {
  const bool resumes_other = config && !config->resumes_own && launch.first_step > 0;
  const auto is_used = [&](std::size_t i) {
    return std::ranges::find(launch.used, i) != launch.used.end();
  };
  for (std::size_t i = 0; i < sources.all().size(); ++i) {
    const auto kind = sources.all()[i].kind;
    if (kind == SourceKind::model && has_loaded(launch, sources.all()[i].path)) {
      launch.origin = i;
      if (!is_used(i)) launch.used.push_back(i);
    } else if (kind == SourceKind::checkpoint && resumes_other && is_used(i)) {
      launch.origin = i;
    }
  }
}

/// Finds each launch's inputs: config.yaml has the newest one's, and a checkpoint has those that
/// were in use when it was written.
void link_launches(const std::string& config, const Checkpoints& checkpoints, RunFacts& facts) {
  const auto newest = facts_if_known(config);
  if (newest) facts.sources = newest->sources;
  add_fingerprint(checkpoints.fingerprint, facts.sources);
  if (const auto& base = checkpoints.base)
    facts.sources.all()[facts.sources.add(SourceKind::model, base->path)].hash = to_hex(base->hash);
  for (std::size_t i = 0; i < facts.launches.size(); ++i) {
    auto& launch = facts.launches[i];
    std::string text = i + 1 == facts.launches.size() ? config : "";
    for (std::size_t k = 0; text.empty() && k < facts.checkpoints.size(); ++k)
      if (facts.checkpoints[k].launch == i) text = checkpoints.configs[k];
    launch.has_config = !text.empty() && text == config;
    const auto known = launch.has_config ? newest : facts_if_known(text);
    link_sources(known, facts.sources, launch);
    link_origin(known, facts.sources, launch);
    if (known && !known->resumes_own) continue;
    for (std::size_t k = 0; k < facts.checkpoints.size(); ++k)
      if (facts.checkpoints[k].step == launch.first_step) launch.resumed_from = k;
    for (std::size_t k = 0; known && k < i; ++k)
      if (facts.launches[k].first_step < launch.first_step) launch.continues = k;
  }
  if (newest) facts.name = newest->run_name;
}

train::RunMetrics records_in(const fs::path& folder) {
  std::error_code ignored;
  validate(fs::is_directory(folder, ignored),
           "{} is not a folder; give a run folder such as runs/tiny{}", folder.string(),
           did_you_mean_path(folder));
  const auto metrics = folder / "metrics.jsonl";
  validate(fs::exists(fs::symlink_status(metrics, ignored)),
           "{} is no run folder, since it has no metrics.jsonl; give a folder that llamesh train "
           "has written",
           folder.string());
  return train::read_lines(metrics);
}

/// Returns the newest record's time, or -infinity.
double newest_time(const train::RunMetrics& run) {
  double newest = -std::numeric_limits<double>::infinity();
  for (const auto& start : run.starts) newest = std::fmax(newest, start.last_time);
  for (const auto& [step, record] : run.steps) newest = std::fmax(newest, record.time);
  return newest;
}

void add_state(const std::optional<train::RunState>& state, RunFacts& facts) {
  if (!state) return;
  constexpr std::array names{"running", "stopped", "done", "failed"};
  facts.phase = names.at(static_cast<std::size_t>(state->phase));
  if (state->steps > 0) facts.steps = state->steps;
  facts.joules = state->joules;
}

}  // namespace

RunFacts read_run_facts(const fs::path& folder) {
  const auto run = records_in(folder);
  RunFacts facts;
  facts.last_record = newest_time(run);
  validate(known_time(facts.last_record).has_value(),
           "{} has no record with a time yet; wait for the run's first step", folder.string());
  facts.name = fs::weakly_canonical(folder / "metrics.jsonl").parent_path().filename().string();
  const auto state = train::read_run_state(folder);
  add_state(state, facts);
  if (!run.steps.empty()) facts.step = run.steps.rbegin()->first;
  facts.files = files_in(folder);
  std::string config;
  if (std::ranges::find(facts.files, "config.yaml", &RunFile::name) != facts.files.end()) {
    config = read_file(folder / "config.yaml", max_config_bytes);
    facts.config_hash = hash_text(config);
  }
  auto checkpoints = checkpoints_in(folder);
  facts.launches = launches_of(run);
  if (!facts.launches.empty())
    facts.launches.back().ended = state && state->phase != train::RunPhase::running;
  describe_checkpoints(run, state, facts.launches, checkpoints.kept);
  facts.checkpoints = checkpoints.kept;
  link_launches(config, checkpoints, facts);
  look_at_files(facts.sources, facts.launches.empty()
                                   ? facts.last_record
                                   : facts.launches.back().started.value_or(facts.last_record));
  return facts;
}

std::string iso_time(double seconds) {
  const auto milliseconds = std::llround(seconds * 1e3);
  const auto whole = milliseconds / 1000;
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}+00:00", fmt::gmtime(static_cast<time_t>(whole)),
                     milliseconds - whole * 1000);
}

std::string percent_encoded(std::string_view text, std::string_view kept) {
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = byte < 128 && (std::isalnum(byte) != 0 || c == '-' || c == '.' || c == '_');
    if (plain || kept.find(c) != kept.npos)
      encoded += c;
    else
      encoded += fmt::format("%{:02X}", byte);
  }
  return encoded;
}

}  // namespace llamesh::app
