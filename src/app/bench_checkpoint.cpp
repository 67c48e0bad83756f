#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

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

/// One file shared by all ranks, each with its part of it, as a checkpoint has it.
void raw_write(const fs::path& path, const RandomState& state, int rank) {
  checkpoint::Descriptor file(path, O_WRONLY | O_CREAT);
  const auto begin = rank * state.bytes();
  for (std::int64_t at = 0; at < state.bytes(); at += piece)
    file.write(begin + at, state.data() + at, std::min(piece, state.bytes() - at));
  file.sync();
}

void raw_read(const fs::path& path, const RandomState& state, int rank) {
  const checkpoint::Descriptor file(path, O_RDONLY);
  const auto begin = rank * state.bytes();
  for (std::int64_t at = 0; at < state.bytes(); at += piece)
    file.read(begin + at, state.data() + at, std::min(piece, state.bytes() - at));
}

struct Times {
  std::vector<double> raw_write, save, raw_read, load;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void print_table(const Times& times, double bytes) {
  fmt::print("{:<28} {:>10} {:>10} {:>10}\n", "", "seconds", "GB/s", "of raw");
  const auto line = [&](const char* name, const std::vector<double>& seconds,
                        const std::vector<double>& raw) {
    fmt::print("{:<28} {:>10.3f} {:>10.2f} {:>8.0f} %\n", name, median(seconds),
               bytes / median(seconds) * 1e-9, 100 * median(raw) / median(seconds));
  };
  line("raw pwrite and fsync", times.raw_write, times.raw_write);
  line("save", times.save, times.raw_write);
  line("raw pread, from page cache", times.raw_read, times.raw_read);
  line("load, from page cache", times.load, times.raw_read);
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
    print("{} ranks, {:.2f} GiB of fp32 in {} datasets, in {}; medians of {} alternating rounds\n",
          world_.size(), static_cast<double>(state_.checkpoint_bytes()) / (1 << 30),
          state_.datasets(), folder_.parent_path().string(), rounds);
    double extra = 0;
    for (int round = 0; round < rounds; ++round) {
      const double rise = rise_in_mib(world_, [&] { save_and_load(round); });
      extra = std::max(extra, rise);
    }
    if (world_.rank() == 0) print_table(times_, static_cast<double>(state_.checkpoint_bytes()));
    print("extra memory of a rank for save and load: at most {:.1f} MiB\n", extra);
    asynchronous();
  }

 private:
  static constexpr int rounds = 5;

  template <class... Args>
  void print(fmt::format_string<Args...> text, Args&&... args) const {
    if (world_.rank() == 0) fmt::print(text, std::forward<Args>(args)...);
  }

  checkpoint::Groups groups() const { return {world_, world_, lone_}; }

  /// Raw and ours one after the other, in turns first: what else the machine does meets both.
  void save_and_load(int round) {
    const auto raw = folder_ / "raw";
    checkpoint::Store store(folder_ / "checkpoints", {.keep = 1}, groups());
    fs::path saved;
    const auto measure_raw = [&] {
      times_.raw_write.push_back(
          seconds_of(world_, [&] { raw_write(raw, state_, world_.rank()); }));
    };
    const auto measure_save = [&] {
      times_.save.push_back(
          seconds_of(world_, [&] { saved = store.save(state_.state(), at_step(round)); }));
    };
    if (round % 2 == 0) {
      measure_raw();
      measure_save();
    } else {
      measure_save();
      measure_raw();
    }
    times_.raw_read.push_back(seconds_of(world_, [&] { raw_read(raw, state_, world_.rank()); }));
    times_.load.push_back(seconds_of(world_, [&] {
      checkpoint::read_state(saved, state_.state(), world_, checkpoint::OtherGroups::refuse);
    }));
    // Here, so that neither time holds the removal of an older file.
    world_.barrier();
    if (world_.rank() == 0) {
      fs::remove(raw);
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
  Times times_;
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
