#include "plan/step_plan.hpp"

#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "checkpoint/format/state.hpp"
#include "checkpoint/memory/snapshot_plan.hpp"
#include "comm/mesh/device_mesh.hpp"
#include "device/buffer.hpp"
#include "device/device.hpp"
#include "device/host_memory.hpp"
#include "device/simulated/simulation.hpp"
#include "ops/gemm_rate.hpp"
#include "ops/ops.hpp"
#include "plan/memory_checkpoint_room.hpp"
#include "train/engine/engine.hpp"
#include "train/engine/flops.hpp"

namespace llamesh::plan {
namespace {

/// An Engine on the current simulated device, and a micro-batch for it.
class SimulatedRank {
 public:
  SimulatedRank(const train::Setup& setup, comm::DeviceMesh& mesh, std::int64_t micro_batches)
      : in_(setup.inputs),
        row_length_(setup.row_length()),
        all_micro_batches_(setup.micro_batches),
        engine_(setup, mesh) {
    model::Batch batch{.tokens = token_ids(), .targets = token_ids()};
    if (in_.data.document_mask) batch.document_starts = token_ids();
    if (in_.data.pairs) {
      const auto documents = 2 * setup.max_pairs();
      const Tensor numbers = on_device(DType::f32, {2 * documents});
      batch.pairs = {.documents = token_ids(),
                     .references = numbers.slice(0, documents),
                     .tokens = numbers.slice(documents, documents)};
    }
    micro_batches_.assign(static_cast<std::size_t>(micro_batches), batch);
    engine_.fsdp.on_master_weights_loaded();
  }

  /// Runs a step's passes like Trainer, and the norm for clipping.
  void passes() {
    engine_.forward_backward(micro_batches_, 1.0F);
    if (in_.train.reproducible == train::Reproducible::mesh) {
      optim::largest_gradient(engine_.state);
      optim::square_units_share(engine_.state, 0);
    } else {
      optim::squared_norm_share(engine_.state);
    }
    engine_.model.take_loss();
  }
  void update() { engine_.update(in_.optimizer.lr, 0, 1); }
  /// All replicas that train apart exchange all that they have learned.
  void exchange_replicas() { engine_.exchange_replicas(1, 1); }

  std::int64_t checkpoint_bytes() const {
    std::int64_t numel = 0;
    const auto state = saved();
    for (const auto& group : state.groups)
      for (const auto& parameter : state.layout.table().parameters)
        if (group.contents.contain(parameter)) numel += parameter.numel();
    return numel * size_of(DType::f32);
  }
  /// Returns the bytes of this rank's shards in a memory checkpoint.
  std::int64_t snapshot_bytes() const { return checkpoint::key_of(saved()).bytes; }

 private:
  checkpoint::State saved() const {
    const auto all = checkpoint::state_of(engine_.state);
    return train::refers_to_base(in_) ? all.trained() : all;
  }
  /// Returns a (B, T) int32 tensor on the device.
  Tensor token_ids() { return on_device(DType::i32, {in_.train.micro_batch, row_length_}); }
  /// Returns a micro-batch's part; a step's parts are all copied at once
  /// (device::Staging). CPU kernels read the host's, which are not counted.
  Tensor on_device(DType dtype, std::initializer_list<std::int64_t> shape) {
    const bool on_cpu = device::Simulation::current().hardware().kind == device::Kind::cpu;
    const auto bytes = all_micro_batches_ * Tensor(nullptr, dtype, shape).bytes();
    ids_.emplace_back(bytes, on_cpu ? device::Counted::no : device::Counted::yes);
    pinned_ids_.push_back(device::Buffer::on_host(bytes));
    return ids_.back().tensor(dtype, shape);
  }

  const train::Inputs& in_;
  std::int64_t row_length_;
  std::int64_t all_micro_batches_;  ///< per step
  train::Engine engine_;
  std::vector<device::Buffer> ids_, pinned_ids_;
  std::vector<model::Batch> micro_batches_;  ///< simulated
};

/// A scope in which the calling thread's OpenMP has as many threads as the rank would: oneDNN's
/// scratch depends on them.
class ThreadsOfRank {
 public:
  explicit ThreadsOfRank(const device::Hardware& hardware) : before_(omp_get_max_threads()) {
    if (hardware.kind == device::Kind::cpu) omp_set_num_threads(hardware.threads);
  }
  ~ThreadsOfRank() { omp_set_num_threads(before_); }
  ThreadsOfRank(const ThreadsOfRank&) = delete;
  ThreadsOfRank& operator=(const ThreadsOfRank&) = delete;

 private:
  int before_;
};

/// Returns the hardware of a rank with `threads` (train.threads; 0: one per core). With fewer
/// threads than cores it reaches their share of the peak.
device::Hardware with_threads(device::Hardware hardware, int threads) {
  if (hardware.kind != device::Kind::cpu || threads == 0 || hardware.is_measured()) return hardware;
  const double share = std::min(1.0, static_cast<double>(threads) / hardware.threads);
  hardware.peak_bf16 *= share;
  hardware.peak_fp32 *= share;
  hardware.threads = threads;
  return hardware;
}

/// Runs a GEMM like Trainer's device measurement before the first step, whose scratch stays
/// allocated.
void multiply_as_measured(DType dtype) {
  const auto& hardware = device::Simulation::current().hardware();
  const auto n = ops::measured_gemm_size(hardware.kind, hardware.memory_bytes);
  const device::Buffer buffer(3 * n * n * size_of(dtype), device::Counted::no);
  const auto matrix = [&](std::int64_t i) {
    return buffer.tensor(dtype, {n, n}, i * n * n * size_of(dtype));
  };
  ops::linear(device::compute_stream(), matrix(0), matrix(1), matrix(2), Accumulate::no);
}

/// Returns the seconds for a collective over all ranks with a few host values.
double exchange_seconds(const device::Hardware& hardware, const comm::Topology& topology) {
  const auto ranks = topology.node_of.size();
  const auto& link = topology.nodes > 1 ? hardware.between_nodes : hardware.within_node;
  return static_cast<double>(std::bit_width(ranks - 1)) * link.latency;
}

using BytesByAxis = std::map<const comm::DeviceMesh::Axis*, std::int64_t>;

BytesByAxis bytes_sent(const comm::DeviceMesh& mesh) {
  BytesByAxis sent;
  for (const auto* axis : mesh.all()) sent[axis] = axis->collectives->bytes_sent();
  return sent;
}

/// Records the traffic since `before`. An axis and its factors have one name.
template <class Plan>
void record_traffic(const comm::DeviceMesh& mesh, const BytesByAxis& before, Plan& plan) {
  plan.traffic.clear();
  plan.traffic_between_nodes.clear();
  for (const auto* axis : mesh.all()) {
    if (axis->name.empty()) continue;  // a rank by itself
    const auto bytes = axis->collectives->bytes_sent() - before.at(axis);
    plan.traffic[axis->name] += bytes;
    plan.traffic_between_nodes[axis->name] +=
        std::llround(axis->share_between_nodes * static_cast<double>(bytes));
  }
}

std::vector<std::size_t> calls_in(const comm::CollectiveLog& log) {
  std::vector<std::size_t> calls;
  for (const auto& group : log.groups) calls.push_back(group.calls.size());
  return calls;
}

/// Records the calls since `before`.
void record_calls(const comm::CollectiveLog& log, const std::vector<std::size_t>& before,
                  StepPlan& plan) {
  plan.groups.clear();
  for (std::size_t g = 0; g < log.groups.size(); ++g) {
    const auto earlier = g < before.size() ? before[g] : 0;
    const auto& [name, along, calls] = log.groups[g];
    plan.groups.push_back({name, along, static_cast<std::int64_t>(calls.size() - earlier)});
  }
}

/// Adds a step's share of exchanges between replicas that train apart. Each fragment has the steps
/// of its delay to arrive.
void add_exchanges(const optim::OuterOptions& options, StepPlan& plan) {
  if (!plan.exchange) return;
  const auto fragments = static_cast<double>(options.fragments);
  const double hidden = static_cast<double>(options.delay_steps) * plan.seconds;
  plan.exchange->exposed_seconds =
      fragments * std::max(0.0, plan.exchange->seconds / fragments - hidden);
  const double share = plan.exchange->exposed_seconds / static_cast<double>(options.every_steps);
  plan.seconds += share;
  plan.exposed_seconds += share;
}

void record_speed(const train::Setup& setup, const device::Hardware& hardware, StepPlan& plan) {
  const auto& in = setup.inputs;
  add_exchanges(in.optimizer.outer, plan);
  plan.tokens_per_second =
      static_cast<double>(in.train.global_batch * in.data.sequence_length) / plan.seconds;
  plan.mfu = plan.tokens_per_second *
             train::flops_per_token(in.model, *setup.table, in.data.sequence_length) /
             (hardware.peak(in.precision.parameters) * setup.mesh.ranks());
}

void record_memory_checkpoints(const train::Setup& setup, const SimulatedRank& simulated,
                               StepPlan& plan) {
  const auto& options = setup.inputs.checkpoint.memory;
  if (!options.enabled()) return;
  const auto bytes = [&](checkpoint::RemoteReplicas partner) {
    return memory_checkpoint_bytes(setup, plan.rank, simulated.snapshot_bytes(), partner);
  };
  plan.memory_checkpoints = bytes(options.partner);
  plan.remote_replicas = plan.memory_checkpoints - bytes(checkpoint::RemoteReplicas::off);
}

/// Simulates a whole exchange between replicas that train apart.
void plan_exchange(const device::Simulation& simulation, const comm::DeviceMesh& mesh,
                   SimulatedRank& simulated, StepPlan::Exchange& exchange) {
  const double start = simulation.now();
  const auto sent = bytes_sent(mesh);
  simulated.exchange_replicas();
  record_traffic(mesh, sent, exchange);
  exchange.seconds = simulation.now() - start;
}

/// Simulates the steps; leaves out the rates, which record_speed() adds. `time`: shared with the
/// other pipeline stages, or null.
StepPlan simulate(device::Simulation& simulation, const train::Setup& setup, int rank,
                  std::int64_t micro_batches, comm::CollectiveLog& log,
                  comm::SharedTime* time = nullptr) {
  const ThreadsOfRank threads(simulation.hardware());
  simulation.use_rates_of(setup.inputs.precision.parameters);
  multiply_as_measured(setup.inputs.precision.parameters);
  comm::DeviceMesh mesh(setup.topology, setup.mesh, rank, &log, time, setup.order_of_sums());
  SimulatedRank simulated(setup, mesh, micro_batches);
  const double exchange = exchange_seconds(simulation.hardware(), setup.topology);
  const auto meet_others = [&] {
    if (time) simulation.host_waits_until(time->meet(simulation.now()));
    simulation.host_waits(exchange);
  };
  auto& meter = simulation.meter();
  StepPlan plan;
  plan.rank = rank;
  plan.checkpoint_bytes = simulated.checkpoint_bytes();
  record_memory_checkpoints(setup, simulated, plan);
  for (int step = 1; step <= 2; ++step) {  // pools grow in the first one
    if (time) simulation.host_waits_until(time->meet(simulation.now()));
    const double start = simulation.now();
    const double exposed = simulation.exposed_seconds();
    const auto copied = simulation.copied_by_host();
    const auto sent = bytes_sent(mesh);
    const auto called = calls_in(log);
    meter.start_interval();
    simulation.clear_kernel_log();
    meet_others();  // for the number of tokens
    simulated.passes();
    plan.allocated_after_step = meter.in_use();
    plan.peak = meter.peak();
    plan.at_peak = meter.by_use_at_peak();
    meet_others();  // for loss and norm
    simulated.update();
    if (time) simulation.host_waits_until(time->meet(simulation.now()));
    plan.seconds = simulation.now() - start;
    plan.exposed_seconds = simulation.exposed_seconds() - exposed;
    plan.over_host_link = simulation.copied_by_host() - copied;
    record_traffic(mesh, sent, plan);
    record_calls(log, called, plan);
    if (step == 1) simulated.exchange_replicas();  // takes scratch
  }
  plan.on_host = simulation.host_meter().in_use();
  if (setup.inputs.optimizer.outer.enabled())
    plan_exchange(simulation, mesh, simulated, plan.exchange.emplace());
  return plan;
}

/// Returns how many of a step's micro-batches are simulated, and how many follow at a time from
/// then on.
struct Simulated {
  std::int64_t taken, at_a_time;
};
Simulated micro_batches_to_simulate(const train::Setup& setup, std::int64_t at_least) {
  const std::int64_t stages = setup.mesh.group_size(setup.mesh.pipeline());
  const auto all = setup.micro_batches;
  if (stages == 1) return {std::min(all, at_least), 1};
  // A pipeline fills and empties once a step; interleaved chunks take a round at a time.
  const auto at_a_time = setup.inputs.pipeline.chunks == 1 ? 1 : stages;
  if (all % at_a_time != 0) return {all, at_a_time};
  const auto filled = std::max(at_least, 3 * stages);
  return {std::min(all, (filled + at_a_time - 1) / at_a_time * at_a_time), at_a_time};
}

/// Extends `plan` by `more` micro-batches, each of which adds as much as the last one added to
/// `shorter`.
StepPlan extended(StepPlan plan, const StepPlan& shorter, std::int64_t more) {
  const auto times = static_cast<double>(more);
  plan.seconds += times * (plan.seconds - shorter.seconds);
  plan.exposed_seconds += times * (plan.exposed_seconds - shorter.exposed_seconds);
  plan.over_host_link += more * (plan.over_host_link - shorter.over_host_link);
  for (auto& [axis, bytes] : plan.traffic) bytes += more * (bytes - shorter.traffic.at(axis));
  for (auto& [axis, bytes] : plan.traffic_between_nodes)
    bytes += more * (bytes - shorter.traffic_between_nodes.at(axis));
  for (std::size_t g = 0; g < plan.groups.size(); ++g)
    plan.groups[g].collectives +=
        more * (plan.groups[g].collectives - shorter.groups[g].collectives);
  return plan;
}

/// Returns hardware whose rates do not matter.
device::Hardware with_unit_rates(device::Kind kind, int threads) {
  device::Hardware hardware;
  hardware.kind = kind;
  hardware.threads = threads;
  for (double* rate : {&hardware.memory_bandwidth, &hardware.host_bandwidth, &hardware.host_link,
                       &hardware.peak_bf16, &hardware.peak_fp32, &hardware.gemm_share,
                       &hardware.attention_forward_share, &hardware.attention_backward_share,
                       &hardware.within_node.bandwidth, &hardware.between_nodes.bandwidth})
    *rate = 1;
  return hardware;
}

const char* where_limit_is_from(const train::Inputs& in) {
  if (in.memory.device_limit > 0) return "memory.device_limit allows";
  return device::kind() == device::Kind::cuda
             ? "the GPU's free memory, less what libraries and NCCL will take, is"
             : "there are";
}

}  // namespace

device::Hardware share_of_rank(device::Hardware hardware, int ranks) {
  if (hardware.kind != device::Kind::cpu) return hardware;
  for (double* of_node :
       {&hardware.memory_bytes, &hardware.memory_bandwidth, &hardware.host_memory_bytes,
        &hardware.host_bandwidth, &hardware.host_link, &hardware.peak_bf16, &hardware.peak_fp32,
        &hardware.within_node.bandwidth, &hardware.between_nodes.bandwidth})
    *of_node /= ranks;
  hardware.threads = std::max(1, hardware.threads / ranks);
  return hardware;
}

device::Hardware as_attained(device::Hardware hardware) {
  for (double* rate : {&hardware.memory_bandwidth, &hardware.gemm_share,
                       &hardware.attention_forward_share, &hardware.attention_backward_share})
    *rate *= hardware.attained;
  hardware.name += " at attained rates";
  return hardware;
}

PlannedRanks::PlannedRanks(const train::Setup& setup, const device::Hardware& of_rank,
                           std::int64_t most, double expert_imbalance)
    : setup_(setup),
      hardware_(with_threads(of_rank, setup.inputs.train.threads)),
      most_(most),
      expert_imbalance_(expert_imbalance) {
  expects(most >= 2, "a step of {} micro-batches to extend", most);
}

PlannedRank& PlannedRanks::operator[](int rank) {
  auto& stages = pipelines_[setup_.mesh.group(setup_.mesh.pipeline(), rank).front()];
  if (stages.empty()) stages = plan_stages(rank);
  return stages[static_cast<std::size_t>(setup_.stage(rank))];
}

/// Plans the ranks of a rank's pipeline, by stage.
std::vector<PlannedRank> PlannedRanks::plan_stages(int rank) const {
  const auto [taken, at_a_time] = micro_batches_to_simulate(setup_, most_);
  auto planned = simulate_stages(rank, taken);
  if (taken < setup_.micro_batches) {
    const auto shorter = simulate_stages(rank, taken - at_a_time);
    for (std::size_t i = 0; i < planned.size(); ++i)
      planned[i].plan = extended(std::move(planned[i].plan), shorter[i].plan,
                                 (setup_.micro_batches - taken) / at_a_time);
  }
  for (auto& stage : planned) record_speed(setup_, hardware_, stage.plan);
  return planned;
}

/// Simulates all stages of a rank's pipeline side by side, each on its thread.
std::vector<PlannedRank> PlannedRanks::simulate_stages(int rank, std::int64_t micro_batches) const {
  const auto ranks = setup_.mesh.group(setup_.mesh.pipeline(), rank);
  comm::SharedTime time(static_cast<int>(ranks.size()));
  std::vector<PlannedRank> planned(ranks.size());
  std::exception_ptr failure;  // the first one, which ends the waits of the others
  std::once_flag failed;
  const auto simulate_stage = [&](std::size_t stage) {
    try {
      device::Simulation simulation(hardware_, expert_imbalance_);
      planned[stage].plan = simulate(simulation, setup_, ranks[stage], micro_batches,
                                     planned[stage].log, ranks.size() == 1 ? nullptr : &time);
    } catch (...) {
      std::call_once(failed, [&] { failure = std::current_exception(); });
      time.fail();
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t stage = 1; stage < ranks.size(); ++stage)
      others.emplace_back(simulate_stage, stage);
    simulate_stage(0);
  }
  if (failure) std::rethrow_exception(failure);
  return planned;
}

StepPlan plan_step(const train::Setup& setup, const device::Hardware& of_rank, int rank,
                   std::int64_t most, comm::CollectiveLog* log, double expert_imbalance) {
  PlannedRanks ranks(setup, of_rank, most, expert_imbalance);
  auto& planned = ranks[rank];
  if (log) *log = std::move(planned.log);
  return std::move(planned.plan);
}

std::vector<device::KernelCall> kernels_of_step(const train::Setup& setup) {
  auto hardware = with_unit_rates(device::Kind::cpu, setup.inputs.train.threads);
  hardware.measured.ranks = 1;
  device::Simulation simulation(hardware);
  std::vector<device::KernelCall> calls;
  simulation.log_kernels(&calls);
  comm::CollectiveLog unwanted;
  simulate(simulation, setup, 0, setup.micro_batches, unwanted);
  return calls;
}

StepPlan plan_fullest_rank(const train::Setup& setup, const device::Hardware& hardware,
                           double expert_imbalance) {
  PlannedRanks ranks(setup, hardware, 4, expert_imbalance);
  std::optional<StepPlan> fullest;
  for (const int rank : peak_memory_candidates(setup))
    if (const auto& plan = ranks[rank].plan; !fullest || plan.peak > fullest->peak) fullest = plan;
  return std::move(*fullest);
}

StepPlan plan_on_this_device(const train::Setup& setup, int rank, int threads) {
  device::Simulation simulation(with_unit_rates(device::kind(), threads));
  comm::CollectiveLog unwanted;
  return simulate(simulation, setup, rank, std::min<std::int64_t>(setup.micro_batches, 4),
                  unwanted);
}

std::int64_t usable_gpu_memory(std::int64_t free, int ranks) {
  const auto reserved = gpu_library_bytes + (ranks > 1 ? nccl_bytes : 0);
  return std::max<std::int64_t>(free - reserved, 0);
}

std::int64_t device_limit(const train::Setup& setup, int rank) {
  const auto& in = setup.inputs;
  if (in.memory.device_limit > 0) return in.memory.device_limit;
  if (device::kind() != device::Kind::cuda) return host_limit(setup, rank);
  const bool may_use_cudnn = in.precision.parameters == DType::bf16 && !in.data.document_mask;
  const auto scratch = may_use_cudnn ? ops::max_attention_scratch() : 0;
  return usable_gpu_memory(device::free_gpu_memory_bytes() - scratch, setup.mesh.ranks());
}

std::int64_t host_limit(const train::Setup& setup, int rank) {
  const auto& hosts = setup.topology.host_of;
  return device::host_memory_bytes() /
         std::ranges::count(hosts, hosts[static_cast<std::size_t>(rank)]);
}

void check_memory(const comm::Communicator& world, const train::Setup& setup) {
  comm::agree(world, [&] {
    const auto threads = std::max(1, setup.inputs.train.threads);
    const auto planned = plan_on_this_device(setup, world.rank(), threads);
    const auto limit = device_limit(setup, world.rank());
    validate_host(planned.peak <= limit,
                  "a step takes {} bytes of a rank's memory at its peak ({}), but {} {}{}",
                  planned.peak, train::describe(planned.at_peak), where_limit_is_from(setup.inputs),
                  limit, device::memory_advice());
    const auto of_host = host_limit(setup, world.rank());
    // On a CPU both share the same memory.
    const auto of_device = device::kind() == device::Kind::cpu ? planned.peak : 0;
    validate_host(
        planned.on_host <= of_host - of_device,
        "a rank keeps {} bytes in host memory (sharding.offload) beside {} of its device, but "
        "its part of the host's memory is {}; use fewer ranks a node or more nodes",
        planned.on_host, of_device, of_host);
    if (setup.inputs.checkpoint.memory.enabled())
      check_memory_checkpoints(planned, memory_checkpoint_room(setup, planned, world.rank()));
    device::check_address_space(of_device + planned.on_host +
                                device::library_address_space(threads));
  });
}

}  // namespace llamesh::plan
