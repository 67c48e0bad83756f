#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/bench/bench.hpp"
#include "app/program/options.hpp"
#include "app/program/program.hpp"
#include "comm/mpi/session.hpp"
#include "comm/transports/mpi_collectives.hpp"
#include "comm/transports/node_collectives.hpp"
#include "config/hardware.hpp"
#include "core/file.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "device/device.hpp"
#include "ops/ops.hpp"
#include "plan/kernel_rates.hpp"
#include "train/setup/setup.hpp"

namespace llamesh::app {
namespace {

/// A model to measure, and its sequence length in tokens.
struct MeasuredModel {
  model::ModelConfig model;
  std::int64_t sequence;
};

/// Returns Llamas of several widths and lengths, and a model with the other kernels of each family.
std::vector<MeasuredModel> measured_models() {
  const auto llama = [](std::int64_t hidden, std::int64_t vocabulary) {
    model::ModelConfig model;
    model.hidden_size = hidden;
    model.intermediate_size = hidden / 4 * 11;
    model.num_hidden_layers = 2;
    model.num_attention_heads = std::max<std::int64_t>(hidden / 64, 2);
    model.num_key_value_heads = model.num_attention_heads / 2;
    model.vocab_size = vocabulary;
    return model;
  };
  std::vector<MeasuredModel> models{{llama(64, 512), 64},
                                    {llama(256, 4096), 256},
                                    {llama(256, 4096), 2048},
                                    {llama(1024, 16384), 128},
                                    {llama(1024, 16384), 512}};
  auto gpt2 = llama(256, 4096);
  gpt2.family = "gpt2";
  gpt2.num_key_value_heads = gpt2.num_attention_heads;
  gpt2.max_position_embeddings = 512;
  gpt2.tie_word_embeddings = true;
  auto mixtral = llama(256, 4096);
  mixtral.family = "mixtral";
  mixtral.num_experts = 4;
  mixtral.num_experts_per_tok = 2;
  models.push_back({gpt2, 512});
  models.push_back({mixtral, 512});
  return models;
}

class HardwareBench {
 public:
  /// All measurements take about `seconds`. Borrows `world`.
  HardwareBench(const comm::Communicator& world, double seconds)
      : world_(world), machine_(world.split_shared_memory()), seconds_(seconds) {
    hardware_.kind = device::Kind::cpu;
    hardware_.threads = train::set_threads(0, world);
  }

  device::Hardware run(const std::filesystem::path& folder) {
    measure_kernels();
    measure_collectives();
    measure_disk(folder);
    fill_in();
    return hardware_;
  }

 private:
  static constexpr DType dtypes[] = {DType::f32, DType::bf16};

  void measure_kernels() {
    const auto models = measured_models();
    for (const DType dtype : dtypes) {
      plan::KernelRates rates;
      for (const auto& [model, sequence] : models) {
        train::Inputs in;
        in.model = model;
        in.precision.parameters = dtype;
        in.data.format = data::Format::random;
        in.data.sequence_length = sequence;
        in.train.threads = hardware_.threads;
        rates.measure(world_, in, 0.7 * seconds_ / static_cast<double>(2 * models.size()));
      }
      hardware_.measured.kernels[dtype] = rates.tables(world_);
    }
  }

  void measure_collectives() {
    auto& measured = hardware_.measured;
    measured.ranks = machine_.size();
    if (machine_.size() > 1) {
      comm::NodeCollectives node(machine_);
      measure_collectives(node, measured.within_node);
      hardware_.collective_seconds = gather_in_place(node);
    }
    // Nodes can also be parts of one machine (mesh.ranks_per_node).
    const auto across = world_.split(machine_.rank(), world_.rank());
    const auto& nodes = across.size() > 1 ? across : world_;
    if (nodes.size() == 1) return;
    comm::MpiCollectives messages(nodes);
    measure_collectives(messages, measured.between_nodes);
  }

  void measure_collectives(comm::Collectives& axis,
                           std::map<DType, device::RateTables>& measured) const {
    for (const DType dtype : dtypes)
      for (const std::int64_t bytes : {1 << 14, 1 << 18, 1 << 22, 1 << 26})
        measure_collectives(axis, dtype, bytes, measured[dtype]);
  }

  void measure_collectives(comm::Collectives& axis, DType dtype, std::int64_t bytes,
                           device::RateTables& tables) const {
    const auto ranks = axis.size();
    const auto n = std::max<std::int64_t>(bytes / size_of(dtype) / ranks / 64, 1) * 64;
    const double sent = static_cast<double>(n * size_of(dtype)) * (ranks - 1);
    if (const auto known = tables.find("all-to-all");
        known != tables.end() && known->second.points.back().first >= sent)
      return;  // many ranks: small sizes have the same parts
    auto gathered = axis.allocate_gathered(n * size_of(dtype));
    auto parts = axis.allocate_symmetric(n * ranks * size_of(dtype));
    const device::Buffer shard(n * 4), received(n * ranks * size_of(dtype));
    const auto whole = gathered.tensor(dtype, {n * ranks});
    const auto data = parts.tensor(dtype, {n * ranks});
    const auto to = received.tensor(dtype, {n * ranks});
    const auto mine = shard.tensor(DType::f32, {n});
    const auto add = [&](const char* kind, const auto& collective) {
      tables[kind].points.emplace_back(sent, sent / mean_seconds(collective));
    };
    add("all-gather", [&] { axis.all_gather(whole, mine, {}).wait(); });
    add("reduce-scatter", [&] { axis.reduce_scatter(mine, data, Accumulate::no, {}).wait(); });
    add("all-reduce", [&] { axis.all_reduce(data, {}).wait(); });
    add("all-to-all", [&] { axis.all_to_all(to, data, {}).wait(); });
    axis.free_symmetric(std::move(parts));
  }

  /// Returns the seconds for a gather in which every rank's part is already in place.
  double gather_in_place(comm::Collectives& axis) const {
    auto gathered = axis.allocate_gathered(64);
    constexpr std::int64_t part = 16;
    const auto whole = gathered.tensor(DType::f32, {part * axis.size()});
    return mean_seconds(
        [&] { axis.all_gather(whole, whole.slice(axis.rank() * part, part), {}).wait(); });
  }

  /// Returns a call's mean seconds over all ranks, which call it together. Collective.
  template <class Work>
  double mean_seconds(const Work& work) const {
    constexpr int cells = 64 + 8;  // collectives of both kinds, and more
    work();
    const auto once = timed(1, work);
    const auto calls = std::clamp<std::int64_t>(
        std::llround(0.3 * seconds_ / cells / std::max(once, 1e-9)), 1, 10000);
    return timed(calls, work) / static_cast<double>(calls);
  }

  template <class Work>
  double timed(std::int64_t calls, const Work& work) const {
    world_.barrier("a benchmark");
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < calls; ++i) work();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    return world_.sum(seconds.count(), "a benchmark") / world_.size();
  }

  /// Measures writes of one file per rank, with fsync.
  void measure_disk(const std::filesystem::path& folder) {
    const std::string piece(std::size_t{4} << 20U, 'x');
    const auto path = folder / fmt::format("bench-hardware.{}.{}", getpid(), world_.rank());
    const std::int64_t pieces = std::clamp<std::int64_t>(std::llround(seconds_), 1, 32);
    const auto seconds = timed(1, [&] {
      auto file = Descriptor::to_write(path, O_WRONLY | O_CREAT | O_EXCL);
      std::filesystem::remove(path);  // leaves no file even if this fails
      for (std::int64_t i = 0; i < pieces; ++i) file.append(piece);
      file.sync();
    });
    hardware_.measured.disk =
        static_cast<double>(pieces) * static_cast<double>(piece.size()) * machine_.size() / seconds;
  }

  double fastest_gemm(DType dtype) const {
    double rate = 0;
    for (const char* kernel : {"linear", "linear_backward_input", "linear_backward_weight"})
      for (const auto& [size, at_size] : hardware_.measured.kernels.at(dtype).at(kernel).points)
        rate = std::max(rate, at_size);
    return rate;
  }

  /// Sets the values that no table covers, summed over a node's ranks.
  void fill_in() {
    auto& h = hardware_;
    const int ranks = machine_.size();
    h.name = fmt::format("{} with {} each", counted(ranks, "rank"), counted(h.threads, "thread"));
    h.threads *= ranks;
    h.memory_bytes = static_cast<double>(device::host_memory_bytes());
    const auto largest = [&](DType dtype, const char* kernel) {
      return h.measured.kernels.at(dtype).at(kernel).points.back().second;
    };
    h.memory_bandwidth = ranks * largest(DType::f32, "adamw");
    h.peak_fp32 = ranks * fastest_gemm(DType::f32);
    h.peak_bf16 = ranks * fastest_gemm(DType::bf16);
    h.gemm_share = 1;
    const auto share = [&](const char* kernel) {
      return std::min(1.0, ranks * largest(DType::f32, kernel) / h.peak_fp32);
    };
    h.attention_forward_share = share("attention");
    h.attention_backward_share = share("attention_backward");
    const auto exchange = mean_seconds([&] { world_.sum(std::int64_t{1}, "a benchmark"); });
    h.within_node.latency = h.between_nodes.latency =
        exchange / std::max(1.0, std::ceil(std::log2(world_.size())));
    const auto bandwidth = [&](const std::map<DType, device::RateTables>& tables) {
      const auto of = tables.find(DType::f32);
      return of == tables.end() ? h.memory_bandwidth / 2
                                : ranks * of->second.at("all-to-all").points.back().second;
    };
    h.within_node.bandwidth = bandwidth(h.measured.within_node);
    h.between_nodes.bandwidth = bandwidth(h.measured.between_nodes);
  }

  const comm::Communicator& world_;
  comm::Communicator machine_;
  double seconds_;
  device::Hardware hardware_;
};

/// Measures this machine's rates for `llamesh plan --hardware` in about `seconds`.
int bench_hardware(const std::string& output, Existing existing, double seconds) {
  const comm::MpiSession session;
  setup_logging();
  const auto& world = session.world();
  use_device(world, "cpu");
  const auto machine = world.split_shared_memory();
  const auto fewest = world.min(std::int64_t{machine.size()}),
             most = world.max(std::int64_t{machine.size()});
  std::optional<OutputFile> file;
  comm::agree(world, [&] {  // every rank finds the same error, one reports it
    validate(fewest == most, "nodes have {} to {} ranks; start the same number on each node",
             fewest, most);
    if (world.rank() == 0) file.emplace(output, existing);
  });
  run_or_abort([&] {
    const auto hardware =
        HardwareBench(world, seconds).run(std::filesystem::absolute(output).parent_path());
    if (!file) return;
    auto to = Descriptor::to_write(file->path(), O_WRONLY | O_CREAT | O_TRUNC);
    to.append(config::hardware_text(hardware));
    file->finish();
  });
  return 0;
}

}  // namespace

void declare_bench_hardware(CLI::App& bench, Run& chosen) {
  auto& command =
      add_command(bench, "hardware",
                  "Measure this machine's CPUs for plan --hardware (under mpirun, as the run)",
                  {"mpirun -n 2 llamesh bench hardware --output node.yaml",
                   "srun -N 2 --ntasks-per-node=8 llamesh bench hardware --output node.yaml"});
  auto& [output, existing, seconds] = runs(command, chosen, bench_hardware);
  seconds = 60;
  command.add_option("--output", output, "The file for plan --hardware; - is standard output")
      ->required();
  command.add_option("--seconds", seconds, "Rough duration (default 60)")
      ->check(CLI::Range(1, 3600));
  add_force(command, existing);
}

}  // namespace llamesh::app
