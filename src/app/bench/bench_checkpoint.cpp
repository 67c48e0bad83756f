#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "app/bench/bench.hpp"
#include "app/bench/bench_checkpoint_state.hpp"
#include "app/program/options.hpp"
#include "checkpoint/format/format.hpp"
#include "checkpoint/store/store.hpp"
#include "comm/mpi/session.hpp"
#include "core/file.hpp"
#include "core/log.hpp"
#include "core/median.hpp"
#include "core/slurm/own_job.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

checkpoint::TrainState at_step(std::int64_t step) {
  checkpoint::TrainState progress;
  progress.step = step;
  return progress;
}

/// Times for one kind of work, in seconds, per round.
struct Timings {
  std::string name;
  std::vector<double> seconds;
};

/// Reads a value from /proc/self/status, in bytes.
std::int64_t status_of(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key + ":")) {
      std::int64_t kibibytes = 0;
      std::istringstream(line.substr(key.size() + 1)) >> kibibytes;
      return kibibytes * 1024;
    }
  return 0;
}

/// Prints throughput relative to raw: the fastest round against raw's fastest, which other disk
/// users affect least; then median, minimum and maximum over the rounds, each against raw in the
/// same round.
void print_line(const Timings& timings, const Timings& raw, double bytes) {
  std::vector<double> percent;
  for (std::size_t i = 0; i < timings.seconds.size(); ++i)
    percent.push_back(100 * raw.seconds[i] / timings.seconds[i]);
  const double best = std::ranges::min(timings.seconds);
  fmt::print("{:<36} {:>9.3f} {:>9.2f} {:>9.2f} {:>8.0f} % {:>8.0f} % {:>7.0f} to {:.0f} %\n",
             timings.name, median(timings.seconds), bytes / median(timings.seconds) * 1e-9,
             bytes / best * 1e-9, 100 * std::ranges::min(raw.seconds) / best, median(percent),
             std::ranges::min(percent), std::ranges::max(percent));
}

/// Returns the seconds until the last rank is done.
double seconds_of(const comm::Communicator& world, const std::function<void()>& work) {
  world.barrier();
  const auto start = std::chrono::steady_clock::now();
  comm::agree(world, work);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return static_cast<double>(world.max(static_cast<std::int64_t>(seconds.count() * 1e9))) * 1e-9;
}

/// Returns the peak increase in resident memory during `work`, as the maximum over ranks.
double peak_increase_mib(const comm::Communicator& world, const std::function<void()>& work) {
  std::ofstream("/proc/self/clear_refs") << "5";  // reset the high-water mark
  const auto before = status_of("VmRSS");
  work();
  return static_cast<double>(world.max(status_of("VmHWM") - before)) / (1 << 20);
}

class Bench {
 public:
  Bench(const comm::Communicator& world, std::int64_t mebibytes)
      : world_(world), state_(world, mebibytes), folder_(comm::on_rank_0(world, [] {
          const auto path = fs::current_path() / ("bench-checkpoint." + job_name());
          make_folder(path);
          return path.string();
        })) {}
  ~Bench() {
    std::error_code error;
    if (world_.rank() == 0) fs::remove_all(folder_, error);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void run() {
    print("{} ranks, {:.2f} GiB of fp32 in {} datasets, in {}; {} rounds\n", world_.size(),
          static_cast<double>(state_.checkpoint_bytes()) / (1 << 30), state_.datasets(),
          folder_.parent_path().string(), rounds);
    double extra = 0;
    for (int round = 0; round < rounds; ++round) {
      const double rise = peak_increase_mib(world_, [&] { save_and_load(round); });
      extra = std::max(extra, rise);
    }
    if (world_.rank() == 0) print_table();
    print("extra memory of a rank for save and load: at most {:.1f} MiB\n", extra);
    asynchronous();
  }

 private:
  static constexpr int rounds = 6;  // even: with two kinds of work, each goes first equally often
  static constexpr auto rest = std::chrono::seconds(3);

  template <class... Args>
  void print(fmt::format_string<Args...> text, Args&&... args) const {
    if (world_.rank() == 0) fmt::print(text, std::forward<Args>(args)...);
  }

  void print_table() const {
    const auto bytes = static_cast<double>(state_.checkpoint_bytes());
    fmt::print("{:<36} {:>9} {:>9} {:>9} {:>10} {:>10}\n", "", "median s", "GB/s", "fastest",
               "of raw's", "of raw");
    for (const auto* s : {&raw_write_, &raw_early_, &save_}) print_line(*s, raw_write_, bytes);
    for (const auto* s : {&raw_cold_, &load_cold_}) print_line(*s, raw_cold_, bytes);
    for (const auto* s : {&raw_read_, &load_, &verify_}) print_line(*s, raw_read_, bytes);
  }

  /// Runs and times each kind of work. The order rotates from round to round, so that order and
  /// other load affect all kinds alike.
  void run_round(int round, std::vector<std::pair<Timings*, std::function<void()>>> works,
                 const std::function<void()>& before) {
    const auto first = static_cast<std::size_t>(round) % works.size();
    std::ranges::rotate(works, works.begin() + static_cast<std::ptrdiff_t>(first));
    for (const auto& [timings, work] : works) {
      before();
      timings->seconds.push_back(seconds_of(world_, work));
    }
  }

  /// Waits until the disk is idle and a virtual machine's freed memory is back with its host, which
  /// slows writers: every writer starts from the same state.
  void wait_until_idle() const {
    world_.barrier();
    if (world_.rank() == 0) ::sync();
    std::this_thread::sleep_for(rest);
  }

  void save_and_load(int round) {
    const auto raw = folder_ / "raw";
    const auto early = folder_ / "raw-early";
    checkpoint::Store store(folder_ / "checkpoints", {.keep = 1}, world_);
    fs::path saved;
    const int rank = world_.rank();
    run_round(round,
              {{&raw_write_, [&] { raw_write(raw, state_, rank, WriteBack::at_the_end); }},
               {&save_, [&] { saved = store.save(state_.state(), at_step(round)); }},
               {&raw_early_, [&] { raw_write(early, state_, rank, WriteBack::early); }}},
              [&] { wait_until_idle(); });
    const std::function<void()> raw_read_all = [&] { raw_read(raw, state_, rank); };
    const std::function<void()> load_all = [&] {
      checkpoint::read_state(saved, state_.state(), world_, checkpoint::OtherGroups::refuse);
    };
    if (rank == 0) {
      drop_from_cache(raw);
      drop_from_cache(saved / checkpoint::state_name);
    }
    const auto nothing = [] {};
    run_round(round, {{&raw_cold_, raw_read_all}, {&load_cold_, load_all}},
              [&] { wait_until_idle(); });
    for (int again = 0; again < rounds; ++again)
      run_round(again, {{&raw_read_, raw_read_all}, {&load_, load_all}}, nothing);
    const auto manifest = checkpoint::read_manifest(saved);
    run_round(round, {{&verify_, [&] { checkpoint::verify_written(saved, manifest, world_); }}},
              nothing);
    // Remove files here, so that no measurement includes it.
    world_.barrier();
    if (rank == 0) {
      fs::remove(raw);
      fs::remove(early);
      fs::remove_all(saved);
    }
    world_.barrier();
  }

  /// Measures asynchronous saves. The stall is save()'s duration with no save in progress. The
  /// first save allocates the copy buffer.
  void asynchronous() {
    std::array<double, 2> stall{};
    const auto extra = peak_increase_mib(world_, [&] {
      checkpoint::Store store(folder_ / "checkpoints", {.keep = 1, .async = true}, world_);
      for (std::size_t i = 0; i < stall.size(); ++i) {
        stall[i] = seconds_of(world_, [&] {
          store.save(state_.state(), at_step(rounds + static_cast<std::int64_t>(i)));
        });
        comm::agree(world_, [&] { store.wait(); });
      }
    });
    const auto shard = static_cast<double>(state_.bytes()) / (1 << 20);
    print(
        "asynchronous save: stalls for {:.3f} s (the first one {:.3f} s), extra memory of a rank "
        "{:.1f} MiB = {:.2f} x its shard\n",
        stall[1], stall[0], extra, extra / shard);
  }

  const comm::Communicator& world_;
  RandomState state_;
  fs::path folder_;
  Timings raw_write_{"raw pwrite, fsync", {}};
  Timings raw_early_{"raw pwrite, early write-back, fsync", {}};
  Timings save_{"save (early write-back)", {}};
  Timings raw_cold_{"raw pread, from disk", {}};
  Timings load_cold_{"load, from disk", {}};
  Timings raw_read_{"raw pread, from page cache", {}};
  Timings load_{"load, from page cache", {}};
  Timings verify_{"read back before removing old ones", {}};
};

/// Saves and loads a state of about so many MiB against raw writes and reads of the same bytes,
/// below the working folder.
int bench_checkpoint(std::int64_t mebibytes) {
  const comm::MpiSession session;
  setup_logging();
  validate(mebibytes >= 1 && mebibytes <= 1 << 24, "--mib is {}; allowed: 1 to {}", mebibytes,
           1 << 24);
  Bench(session.world(), mebibytes).run();
  return 0;
}

}  // namespace

void declare_bench_checkpoint(CLI::App& bench, Run& chosen) {
  auto& command = add_command(
      bench, "checkpoint", "Compare saving and loading with raw writes and reads (under mpirun)",
      {"mpirun -n 4 llamesh bench checkpoint", "mpirun -n 4 llamesh bench checkpoint --mib 256"});
  auto& [mebibytes] = runs(command, chosen, bench_checkpoint);
  mebibytes = 2048;
  command.add_option("--mib", mebibytes, "Approximate size of the state in MiB (default 2048)");
}

}  // namespace llamesh::app
