#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>
#include <utility>

#include "app/bench.hpp"
#include "checkpoint/files.hpp"
#include "checkpoint/store.hpp"
#include "comm/session.hpp"
#include "core/log.hpp"
#include "core/philox.hpp"
#include "sharding/wrap_policy.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;
constexpr double mib = 1 << 20;
constexpr std::int64_t piece = 4 << 20;  // bytes a call of the raw transfers

/// A Llama whose fp32 weights and two moments are about `mebibytes` together.
model::LlamaConfig config_of(std::int64_t mebibytes) {
  model::LlamaConfig config;
  const bool large = mebibytes >= 1024;
  config.hidden_size = large ? 1024 : 256;
  config.intermediate_size = large ? 2816 : 704;
  config.num_attention_heads = config.hidden_size / 64;
  config.vocab_size = large ? 16384 : 4096;
  config.num_hidden_layers = 1;
  const auto bytes = [&](std::int64_t layers) {
    config.num_hidden_layers = layers;
    return 12.0 * static_cast<double>(model::parameter_table(config.resolved()).numel());
  };
  const double layer = bytes(2) - bytes(1);
  const double rest = bytes(1) - layer;
  const double wanted = (static_cast<double>(mebibytes) * mib - rest) / layer;
  config.num_hidden_layers = std::max(std::int64_t{1}, static_cast<std::int64_t>(wanted + 0.999));
  return config.resolved();
}

/// Random weights and moments, sharded over all ranks.
class RandomState {
 public:
  RandomState(const comm::Communicator& world, std::int64_t mebibytes)
      : rank_(world.rank()),
        table_(model::parameter_table(config_of(mebibytes))),
        layout_(table_, sharding::make_units(table_, {sharding::Wrap::layer, 1}), world.size()) {
    std::int64_t numel = 0;
    for (const auto& unit : layout_.units()) numel += unit.shard_numel;
    buffer_ = device::Buffer(12 * numel);
    fill();
    std::int64_t at = 0;
    for (const char* path : {"/model", "/optimizer/exp_avg", "/optimizer/exp_avg_sq"}) {
      groups_.push_back({path, {}});
      for (const auto& unit : layout_.units()) {
        groups_.back().shards.push_back(buffer_.tensor(DType::f32, {unit.shard_numel}, at));
        at += 4 * unit.shard_numel;
      }
    }
  }
  checkpoint::State state() const { return {layout_, rank_, groups_}; }
  std::byte* data() const { return buffer_.data(); }
  std::int64_t bytes() const { return buffer_.bytes(); }
  std::int64_t checkpoint_bytes() const { return 12 * table_.numel(); }
  std::size_t datasets() const { return 3 * table_.parameters.size(); }

 private:
  /// A piece of random numbers, repeated: drawing them all would take longer than the benchmark.
  void fill() const {
    auto* numbers = reinterpret_cast<float*>(buffer_.data());
    const auto count = std::min(buffer_.bytes(), piece);
    fill_normal(numbers, 0, count / 4, 1, fmt::format("bench {}", rank_), 1.0F);
    for (std::int64_t at = count; at < buffer_.bytes(); at += count)
      std::copy_n(buffer_.data(), std::min(count, buffer_.bytes() - at), buffer_.data() + at);
  }

  int rank_;
  model::ParameterTable table_;
  sharding::ShardLayout layout_;
  device::Buffer buffer_;
  std::vector<checkpoint::StateGroup> groups_;
};

/// Seconds until the last rank is through.
template <class Work>
double seconds_of(const comm::Communicator& world, const Work& work) {
  world.barrier();
  const auto start = std::chrono::steady_clock::now();
  comm::agree(world, work);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return static_cast<double>(world.max(static_cast<std::int64_t>(seconds.count() * 1e9))) * 1e-9;
}

/// A number of /proc/self/status, in bytes.
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

/// By how much the resident memory rises at most during `work`, on the rank where it rises most.
template <class Work>
double rise_in_mib(const comm::Communicator& world, const Work& work) {
  std::ofstream("/proc/self/clear_refs") << "5";  // the high-water mark starts from here
  const auto before = status_of("VmRSS");
  work();
  return static_cast<double>(world.max(status_of("VmHWM") - before)) / mib;
}

checkpoint::Progress at_step(std::int64_t step) {
  checkpoint::Progress progress;
  progress.step = step;
  return progress;
}

enum class WriteBack : bool { at_the_end, early };

/// One file shared by all ranks, each with its part of it, as a checkpoint has it.
void raw_write(const fs::path& path, const RandomState& state, int rank, WriteBack write_back) {
  checkpoint::Descriptor file(path, O_WRONLY | O_CREAT);
  const auto begin = rank * state.bytes();
  for (std::int64_t at = 0; at < state.bytes(); at += piece) {
    const auto count = std::min(piece, state.bytes() - at);
    file.write(begin + at, state.data() + at, count);
    if (write_back == WriteBack::early)
      ::sync_file_range(file.get(), begin + at, count, SYNC_FILE_RANGE_WRITE);
  }
  file.sync();
}

void raw_read(const fs::path& path, const RandomState& state, int rank) {
  const checkpoint::Descriptor file(path, O_RDONLY);
  const auto begin = rank * state.bytes();
  for (std::int64_t at = 0; at < state.bytes(); at += piece)
    file.read(begin + at, state.data() + at, std::min(piece, state.bytes() - at));
}

/// What was written is on the disk already, so the system can forget it.
void drop_from_cache(const fs::path& path) {
  ::posix_fadvise(checkpoint::Descriptor(path, O_RDONLY).get(), 0, 0, POSIX_FADV_DONTNEED);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Seconds of a kind of work, and of the raw work that went before or after it in the same round.
struct Series {
  std::string name;
  std::vector<double> seconds;
};

/// Of raw: the fastest round against raw's fastest, which a disk that others use leaves alone; then
/// the median, least and most over the rounds, each against the raw work of its own round.
void print_line(const Series& series, const Series& raw, double bytes) {
  std::vector<double> percent;
  for (std::size_t i = 0; i < series.seconds.size(); ++i)
    percent.push_back(100 * raw.seconds[i] / series.seconds[i]);
  const double best = std::ranges::min(series.seconds);
  fmt::print("{:<36} {:>9.3f} {:>9.2f} {:>9.2f} {:>8.0f} % {:>8.0f} % {:>7.0f} to {:.0f} %\n",
             series.name, median(series.seconds), bytes / median(series.seconds) * 1e-9,
             bytes / best * 1e-9, 100 * std::ranges::min(raw.seconds) / best, median(percent),
             std::ranges::min(percent), std::ranges::max(percent));
}

class Bench {
 public:
  Bench(const comm::Communicator& world, std::int64_t mebibytes)
      : world_(world),
        lone_(world.split(world.rank(), 0)),
        state_(world, mebibytes),
        folder_(comm::on_rank_0(world, [] {
          const auto path = fs::current_path() / ("bench-checkpoint." + checkpoint::job_name());
          checkpoint::make_folder(path);
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
      const double rise = rise_in_mib(world_, [&] { save_and_load(round); });
      extra = std::max(extra, rise);
    }
    if (world_.rank() == 0) print_table();
    print("extra memory of a rank for save and load: at most {:.1f} MiB\n", extra);
    asynchronous();
  }

 private:
  static constexpr int rounds = 6;  // even: of two works each is first as often
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

  checkpoint::Groups groups() const { return {world_, lone_}; }

  /// Does each of the works in turn and keeps its time; the first one of this round is the last one
  /// of the next, so that what else the machine does, and the order, meet all alike.
  void in_turns(int round, std::vector<std::pair<Series*, std::function<void()>>> works,
                const std::function<void()>& before) {
    const auto first = static_cast<std::size_t>(round) % works.size();
    std::ranges::rotate(works, works.begin() + static_cast<std::ptrdiff_t>(first));
    for (const auto& [series, work] : works) {
      before();
      series->seconds.push_back(seconds_of(world_, work));
    }
  }

  /// The disk has nothing else to do, and memory that was freed has gone back to the host of a
  /// virtual machine, which writers pay for: each of them finds the same.
  void come_to_rest() const {
    world_.barrier();
    if (world_.rank() == 0) ::sync();
    std::this_thread::sleep_for(rest);
  }

  void save_and_load(int round) {
    const auto raw = folder_ / "raw";
    const auto early = folder_ / "raw-early";
    checkpoint::Store store(folder_ / "checkpoints", {.keep = 1}, groups());
    fs::path saved;
    const int rank = world_.rank();
    in_turns(round,
             {{&raw_write_, [&] { raw_write(raw, state_, rank, WriteBack::at_the_end); }},
              {&save_, [&] { saved = store.save(state_.state(), at_step(round)); }},
              {&raw_early_, [&] { raw_write(early, state_, rank, WriteBack::early); }}},
             [&] { come_to_rest(); });
    const std::function<void()> raw_read_all = [&] { raw_read(raw, state_, rank); };
    const std::function<void()> load_all = [&] {
      checkpoint::read_state(saved, state_.state(), world_, checkpoint::OtherGroups::refuse);
    };
    if (rank == 0) {
      drop_from_cache(raw);
      drop_from_cache(saved / "state.h5");
    }
    const auto nothing = [] {};
    in_turns(round, {{&raw_cold_, raw_read_all}, {&load_cold_, load_all}}, [&] { come_to_rest(); });
    for (int again = 0; again < rounds; ++again)
      in_turns(again, {{&raw_read_, raw_read_all}, {&load_, load_all}}, nothing);
    const auto manifest = checkpoint::read_manifest(saved);
    in_turns(round, {{&verify_, [&] { checkpoint::verify_written(saved, manifest, world_); }}},
             nothing);
    // Here, so that no time holds the removal of an older file.
    world_.barrier();
    if (rank == 0) {
      fs::remove(raw);
      fs::remove(early);
      fs::remove_all(saved);
    }
    world_.barrier();
  }

  /// The stall is what save() takes while none is under way. The first one makes the copy's buffer.
  void asynchronous() {
    std::array<double, 2> stall{};
    const auto extra = rise_in_mib(world_, [&] {
      checkpoint::Store store(folder_ / "checkpoints", {.keep = 1, .async = true}, groups());
      for (std::size_t i = 0; i < stall.size(); ++i) {
        stall[i] = seconds_of(world_, [&] {
          store.save(state_.state(), at_step(rounds + static_cast<std::int64_t>(i)));
        });
        comm::agree(world_, [&] { store.wait(); });
      }
    });
    const auto shard = static_cast<double>(state_.bytes()) / mib;
    print(
        "asynchronous save: stalls for {:.3f} s (the first one {:.3f} s), extra memory of a rank "
        "{:.1f} MiB = {:.2f} x its shard\n",
        stall[1], stall[0], extra, extra / shard);
  }

  const comm::Communicator& world_;
  comm::Communicator lone_;  // no replicas
  RandomState state_;
  fs::path folder_;
  Series raw_write_{"raw pwrite, fsync", {}};
  Series raw_early_{"raw pwrite, early write-back, fsync", {}};
  Series save_{"save (early write-back)", {}};
  Series raw_cold_{"raw pread, from disk", {}};
  Series load_cold_{"load, from disk", {}};
  Series raw_read_{"raw pread, from page cache", {}};
  Series load_{"load, from page cache", {}};
  Series verify_{"read back before removing old ones", {}};
};

}  // namespace

int bench_checkpoint(std::int64_t mebibytes) {
  const comm::MpiSession session;
  setup_logging();
  validate(mebibytes >= 1 && mebibytes <= 1 << 24, "--mib {} is not between 1 and {}", mebibytes,
           1 << 24);
  Bench(session.world(), mebibytes).run();
  return 0;
}

}  // namespace llamesh::app
