// power_loss RECORD ROOT SCRATCH STATES [seed=N] [unsynced=NAME] [samples=FOLDER:COUNT]: builds
// disks that a power loss may leave, from record_shim.cpp's record of a run in ROOT/runs/tiny, and
// starts from each like a run. The start must find the last committed checkpoint, or the one being
// committed, with every weight intact, and open its other files. At every call in the record, each
// pending call alone is missing, cut, or has zeros in some pages, or is the only one present;
// random combinations are added. STATES of these are tried; 0: all of the first kind. With
// unsynced=NAME, calls with that name never reach the disk; then the test wants to find a bad disk,
// and fails if there is none. Copies of COUNT random disks go to FOLDER.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <tuple>

#include "checkpoint/fixture.hpp"
#include "comm/mpi/session.hpp"
#include "core/file.hpp"
#include "core/log.hpp"
#include "disk_record.hpp"
#include "model/description/config_json.hpp"
#include "train/job/run_folder.hpp"
#include "train/records/metrics.hpp"
#include "train/records/run_state.hpp"

/// Skips syncing: these disks are thrown away.
extern "C" int fsync(int) {
  return 0;
}

namespace llamesh::test {
namespace {
const comm::Communicator* all = nullptr;
}
const comm::Communicator& world() {
  return *all;
}

namespace {

namespace fs = std::filesystem;

const fs::path run_folder = "runs/tiny";

/// A point in the record, with the results allowed for a launch there.
struct Expected {
  std::int64_t committed = 0;             // newest committed checkpoint's step
  std::optional<std::int64_t> under_way;  // a checkpoint whose rename is not yet on disk
};

/// Tracker for commits in a record: a rename gives a checkpoint its name, and an fsync on the
/// folder that holds it makes that durable.
class Commits {
 public:
  void advance(const RecordedCall& c) {
    const auto step = c.call == Call::rename ? checkpoint::step_of_name(c.new_name) : -1;
    if (step >= 0) {
      now_.under_way = step;
      folder_ = c.folder;
    } else if (c.call == Call::sync && now_.under_way && c.node == folder_) {
      now_ = {*now_.under_way, std::nullopt};
    }
  }
  const Expected& now() const { return now_; }

 private:
  Expected now_;
  Node folder_ = 0;
};

/// One disk's effect on the calls pending at a point. `one` is one of them.
struct Plan {
  enum Kind { none, every, all_but_one, only_one, one_cut, one_in_pages, random } kind;
  std::size_t point;
  std::size_t one = 0;
};

Fate torn(Fate::Kind kind, const RecordedCall& call, std::mt19937_64& random) {
  return {kind, random() % (call.bytes.size() + 1), random()};
}

Fates fates_of(const Plan& plan, const Disk& disk, const std::vector<RecordedCall>& calls,
               std::mt19937_64& random) {
  Fates fates;
  const auto odds = 1 + random() % 9;  // chance out of 10 for each call to be present
  for (const auto i : disk.pending()) {
    const bool is_one = i == plan.one;
    auto kind = Fate::present;
    if (plan.kind == Plan::none || (plan.kind == Plan::only_one && !is_one) ||
        (plan.kind == Plan::all_but_one && is_one) ||
        (plan.kind == Plan::random && random() % 10 >= odds))
      kind = Fate::missing;
    if ((plan.kind == Plan::one_cut && is_one) || (plan.kind == Plan::random && random() % 10 == 0))
      kind = Fate::cut;
    if ((plan.kind == Plan::one_in_pages && is_one) ||
        (plan.kind == Plan::random && random() % 10 == 0))
      kind = Fate::pages;
    if (kind != Fate::present && (kind == Fate::missing || calls[i].call == Call::write))
      fates[i] = torn(kind, calls[i], random);
  }
  return fates;
}

/// Returns all disks on which a single pending call differs from the others, at every point.
std::vector<Plan> single_faults(const std::vector<RecordedCall>& calls,
                                const std::string& unsynced) {
  std::vector<Plan> plans;
  Disk disk(calls, unsynced);
  for (;;) {
    plans.push_back({Plan::every, disk.point()});
    plans.push_back({Plan::none, disk.point()});
    for (const auto i : disk.pending()) {
      plans.push_back({Plan::all_but_one, disk.point(), i});
      plans.push_back({Plan::only_one, disk.point(), i});
      if (calls[i].call != Call::write) continue;
      plans.push_back({Plan::one_cut, disk.point(), i});
      plans.push_back({Plan::one_in_pages, disk.point(), i});
    }
    if (disk.point() == calls.size()) return plans;
    disk.advance();
  }
}

/// Chooses the disks to try: half of `count` from the single faults and half random, or all single
/// faults and half as many random ones. Sorted by point.
std::vector<Plan> choose(std::vector<Plan> plans, std::size_t count, std::size_t points,
                         std::mt19937_64& random) {
  // Nothing or everything pending on disk, at every point: always tried.
  const auto rest = std::ranges::stable_partition(
      plans, [](const Plan& plan) { return plan.kind == Plan::none || plan.kind == Plan::every; });
  std::ranges::shuffle(rest, random);
  const auto wanted = count == 0 ? plans.size() : std::min(plans.size(), (count + 1) / 2);
  plans.resize(std::max(wanted, plans.size() - rest.size()));
  const auto more = count == 0 ? plans.size() / 2 : count - std::min(count, plans.size());
  for (std::size_t i = 0; i < more; ++i) plans.push_back({Plan::random, random() % (points + 1)});
  std::ranges::stable_sort(plans, {}, &Plan::point);
  return plans;
}

/// A launch like a run's, in this process.
class Start {
 public:
  explicit Start(const std::string& model_config)
      : job_(1, sharding::Wrap::layer, model::parse_config_json(model_config, "the manifest")) {}

  /// Returns what a run finds in its folder: the step (0 for none) and its weights. Throws if the
  /// run would stop.
  std::pair<std::int64_t, std::vector<float>> find(const fs::path& folder) {
    setup_logging();
    spdlog::set_level(spdlog::level::off);
    // A launch would wait for another host's lease; this one is left by the killed process.
    fs::remove(folder / "checkpoints/.lease");
    checkpoint::Store store(folder / "checkpoints", {}, world());
    job_.fill(0);
    const auto metrics = train::open_run_folder(folder);
    const auto found = store.resume(job_.state(), "auto");
    const auto step = found ? found->step : 0;
    train::start_after(train::read_run_state(folder), step, /*scheduled=*/true);
    train::MetricsFile(metrics, step).write_event("resume", step, "");
    check_metrics(metrics, step);
    std::vector<float> weights;
    job_.for_each(0, [&](float& number, float) { weights.push_back(number); });
    return {step, weights};
  }

 private:
  /// Checks that each line is ours, and that no step appears twice.
  static void check_metrics(const fs::path& file, std::int64_t step) {
    std::int64_t last = 0;
    for_each_line(Descriptor::to_read(file), [&](std::string_view line, bool) {
      const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!json.is_object()) throw std::runtime_error(fmt::format("metrics.jsonl: {:?}", line));
      if (json.contains("event")) return;
      const std::int64_t at = json.at("step");
      if (at <= last || at > step)
        throw std::runtime_error(fmt::format("metrics.jsonl: step {}", at));
      last = at;
    });
  }

  Job job_;
};

struct Options {
  fs::path record, root, scratch;
  std::size_t states = 0;
  std::uint64_t seed = 1;
  std::string unsynced = {};
  fs::path samples = {};
  std::size_t sample_count = 0;
};

class Replay {
 public:
  explicit Replay(const Options& options)
      : options_(options),
        calls_(read_record(options.record, options.root)),
        random_(options.seed) {
    Disk disk(calls_, "");
    while (disk.point() < calls_.size()) disk.advance();
    const auto end = disk.after({});
    check_completeness(end, read_tree(options.root));
    for (const auto& [path, text] : end)
      if (path.filename() == "manifest.json")
        start_.emplace(checkpoint::parse_manifest(*text).progress.model_config);
    learn_weights();
  }

  /// Returns the number of bad disks.
  std::size_t try_all() {
    const auto all_single = single_faults(calls_, options_.unsynced);
    const auto plans = choose(all_single, options_.states, calls_.size(), random_);
    std::set<std::size_t> sampled;
    while (sampled.size() < std::min(options_.sample_count, plans.size()))
      sampled.insert(random_() % plans.size());
    Disk disk(calls_, options_.unsynced);
    Commits commits;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      while (disk.point() < plans[i].point) {
        commits.advance(calls_[disk.point()]);
        disk.advance();
      }
      const auto tree = disk.after(fates_of(plans[i], disk, calls_, random_));
      if (sampled.contains(i)) keep_sample(tree, commits.now());
      try_one(tree, commits.now(), plans[i]);
    }
    fmt::print(
        "{} calls, {} disks of {} single faults and random ones, {} of them different: {} "
        "start from the last commit, {} from the one under way, {} are bad\n",
        calls_.size(), plans.size(), all_single.size(), seen_.size(), old_, new_, bad_);
    return bad_;
  }

 private:
  /// Checks that the record covers everything the run has written, except the lease: its holder
  /// keeps touching it.
  static void check_completeness(const Tree& replayed, const Tree& real) {
    if (replayed == real) return;
    for (const auto& [path, text] : real)
      if (!replayed.contains(path) || replayed.at(path) != text)
        throw std::runtime_error("the record does not tell how this came about: " + path.string());
    throw std::runtime_error("the record leaves more than there is");
  }

  void learn_weights() {
    Disk disk(calls_, "");
    Commits commits;
    for (const auto& call : calls_) {
      commits.advance(call);
      disk.advance();
      if (const auto step = commits.now().committed; !weights_.contains(step))
        weights_[step] = start_on(disk.after({})).second;
    }
    if (weights_.size() < 3) throw std::runtime_error("a record of fewer than two checkpoints");
  }

  std::pair<std::int64_t, std::vector<float>> start_on(const Tree& tree) {
    fs::remove_all(options_.scratch);
    fs::create_directories(options_.scratch);
    write_tree(tree, options_.scratch);
    return start_->find(options_.scratch / run_folder);
  }

  void try_one(const Tree& tree, const Expected& expected, const Plan& plan) {
    std::size_t hash = 0;
    for (const auto& [path, text] : tree)
      hash = 31 * hash + std::hash<std::string>()(path.string() + '\n' + text.value_or("/"));
    if (!seen_.emplace(hash, expected.committed, expected.under_way.value_or(-1)).second) return;
    std::string trouble;
    try {
      const auto [step, weights] = start_on(tree);
      if (step != expected.committed && step != expected.under_way)
        trouble = fmt::format("it starts from step {}", step);
      else if (weights != weights_.at(step))
        trouble = fmt::format("the weights are not those of step {}", step);
      ++(step == expected.committed ? old_ : new_);
    } catch (const std::exception& error) {
      trouble = error.what();
    }
    if (trouble.empty()) return;
    if (++bad_ > max_reported) return;
    fmt::print("after call {} (plan {}, call {} {}; step {} is committed): {}\n", plan.point,
               static_cast<int>(plan.kind), plan.one, calls_[plan.one].name, expected.committed,
               trouble);
  }

  /// Saves the disk as FOLDER/N/disk, with the steps that a run may resume from beside it.
  void keep_sample(const Tree& tree, const Expected& expected) {
    const auto folder = options_.samples / std::to_string(samples_++);
    fs::create_directories(folder / "disk");
    write_tree(tree, folder / "disk");
    std::ofstream(folder / "steps")
        << expected.committed << ' ' << expected.under_way.value_or(expected.committed) << '\n';
  }

  static constexpr std::size_t max_reported = 5;
  Options options_;
  std::vector<RecordedCall> calls_;
  std::mt19937_64 random_;
  std::optional<Start> start_;
  std::map<std::int64_t, std::vector<float>> weights_;  // by step
  std::set<std::tuple<std::size_t, std::int64_t, std::int64_t>> seen_;
  std::size_t old_ = 0, new_ = 0, bad_ = 0, samples_ = 0;
};

Options parse(const std::vector<std::string>& arguments) {
  Options options{arguments.at(0), arguments.at(1), arguments.at(2), std::stoul(arguments.at(3))};
  for (std::size_t i = 4; i < arguments.size(); ++i) {
    const auto equals = arguments[i].find('=');
    const auto key = arguments[i].substr(0, equals);
    const auto value = arguments[i].substr(equals + 1);
    if (key == "seed") options.seed = std::stoull(value);
    if (key == "unsynced") options.unsynced = value;
    if (key == "samples") {
      options.samples = value.substr(0, value.rfind(':'));
      options.sample_count = std::stoul(value.substr(value.rfind(':') + 1));
    }
  }
  return options;
}

int run(const std::vector<std::string>& arguments) {
  const comm::MpiSession session;
  all = &session.world();
  const auto options = parse(arguments);
  const bool found_bad = Replay(options).try_all() > 0;
  return found_bad == !options.unsynced.empty() ? 0 : 1;
}

}  // namespace
}  // namespace llamesh::test

int main(int count, char** arguments) {
  try {
    return llamesh::test::run({arguments + 1, arguments + count});
  } catch (const std::exception& error) {
    fmt::print("power_loss: {}\n", error.what());
    return 2;
  }
}
