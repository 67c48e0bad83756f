#include "train/step/step_meter.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>
#include <vector>

#include "core/clock.hpp"
#include "core/log.hpp"
#include "device/device.hpp"
#include "ops/gemm_algorithms.hpp"
#include "train/engine/flops.hpp"

namespace llamesh::train {

namespace {

/// Returns true on the lowest rank of a host, which reads the host's counters of energy.
bool answers_for_host(const comm::Communicator& world, const Setup& setup) {
  const auto& hosts = setup.topology.host_of;
  const auto self = static_cast<std::size_t>(world.rank());
  return std::ranges::find(hosts, hosts[self]) - hosts.begin() == world.rank();
}

/// Returns this machine's load average of the last minute per core; 0 if unknown.
double load_per_core() {
  double load = 0;
  if (getloadavg(&load, 1) != 1) return 0;
  return load / static_cast<double>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

/// Returns the folder of sysfs; tests name another one.
std::string sysfs() {
  const char* other = std::getenv("LLAMESH_SYSFS");
  return other == nullptr ? "/sys" : other;
}

}  // namespace

StepMeter::StepMeter(const comm::Communicator& world, const Setup& setup,
                     const comm::DeviceMesh& mesh, Engine& engine, int threads)
    : world_(world),
      setup_(setup),
      mesh_(mesh),
      engine_(engine),
      threads_(threads),
      energy_(answers_for_host(world, setup), sysfs()),
      utilization_(threads) {}

void StepMeter::plan_memory() {
  if (!setup_.plan_memory) return;
  planned_ = setup_.plan_memory(setup_, world_.rank(), threads_);
  planned_.allocated_after_step = world_.max(planned_.allocated_after_step, "planned memory");
  planned_.peak = world_.max(planned_.peak, "planned memory");
  planned_.on_host = world_.max(planned_.on_host, "planned memory");
  planned_.memory_checkpoints = world_.max(planned_.memory_checkpoints, "planned memory");
}

std::string StepMeter::describe_memory() const {
  const auto mebibytes = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  return fmt::format(
      "planned memory per rank: {:.1f} MiB after a step, {:.1f} MiB at the peak ({}){}{}",
      mebibytes(planned_.allocated_after_step), mebibytes(planned_.peak),
      describe(planned_.at_peak),
      setup_.mesh.group_size(setup_.mesh.named({"expert"})) > 1
          ? ", if tokens spread evenly over experts"
          : "",
      planned_.memory_checkpoints > 0 ? fmt::format("; per node {:.1f} MiB for memory checkpoints",
                                                    mebibytes(planned_.memory_checkpoints))
                                      : "");
}

void StepMeter::measure_gemm_peak() {
  const Inputs& in = setup_.inputs;
  ops::use_gemm_sm_count_target(0);  // measure the peak over all SMs
  gemm_peak_.emplace([this, before = false]() mutable {
    // Only before a GPU's memory is full.
    if (std::exchange(before, true) && device::kind() == device::Kind::cuda)
      return std::vector<double>();
    return measured_gemm_rates(world_, setup_.inputs.precision.parameters);
  });
  ops::use_gemm_sm_count_target(in.train.gemm_sm_count_target);
}

void StepMeter::on_bf16_products_changed() {
  if (gemm_peak_) measure_gemm_peak();
  plan_memory();
}

void StepMeter::begin_step() {
  begin_ = Clock::now();
  device::MemoryMeter::instance().start_interval();
  before_ = counters();
  for (auto& [axis, before] : before_) {  // `seconds` has the previous update too
    before.in_collectives -= updating_[axis].in_collectives;
    before.exposed -= updating_[axis].exposed;
  }
  copies_exposed_before_ = engine_.seconds_exposed_by_copies();
}

StepMeter::CountersByAxis StepMeter::counters() const {
  CountersByAxis counters;
  for (const auto* axis : mesh_.all())
    counters[axis] = {axis->collectives->bytes_sent(), axis->collectives->seconds(),
                      axis->collectives->seconds_exposed()};
  return counters;
}

StepSample StepMeter::sample() {
  constexpr auto unknown = std::numeric_limits<double>::quiet_NaN();
  step_joules_ += energy_.joules().value_or(unknown);
  const auto& meter = device::MemoryMeter::instance();
  StepSample mine{.seconds = former_update_ + seconds_since(begin_),
                  .load_per_core = load_per_core(),
                  .in_use = meter.in_use(),
                  .peak = meter.peak(),
                  .on_host = device::MemoryMeter::host().in_use(),
                  .copies_exposed = engine_.seconds_exposed_by_copies() - copies_exposed_before_,
                  .joules = step_joules_,
                  .utilization = utilization_.share().value_or(unknown),
                  .axes = seconds_by_axis(),
                  .quantized = engine_.fsdp.take_quantization_squares()};
  if (engine_.outer) mine.quantized.outer = engine_.outer->take_squares();
  sampled_ = counters();
  mine.own_seconds = mine.seconds - waited_ - mine.copies_exposed;
  for (const auto& axis : mine.axes) mine.own_seconds -= axis.exposed;
  return mine;
}

SecondsByAxis StepMeter::seconds_by_axis() const {
  SecondsByAxis seconds;
  const auto axes = mesh_.all();
  for (std::size_t i = 0; i < std::min(axes.size(), seconds.size()); ++i) {
    const auto& collectives = *axes[i]->collectives;
    const auto& before = before_.at(axes[i]);
    seconds[i] = {static_cast<float>(collectives.seconds() - before.in_collectives),
                  static_cast<float>(collectives.seconds_exposed() - before.exposed)};
  }
  return seconds;
}

/// Records the maximum time and memory over the ranks, and the sum of their energy.
void StepMeter::end_step(StepRecord& record, std::span<const StepPart> parts) {
  step_joules_ = 0;
  double joules = 0, utilization = 0;
  sharding::QuantizedTraffic quantized;
  for (const auto& part : parts) {
    const auto& sample = part.measured;
    joules += sample.joules;
    utilization += sample.utilization / static_cast<double>(parts.size());
    quantized += sample.quantized;
    record.allocated_after_step = std::max(record.allocated_after_step, sample.in_use);
    record.peak = std::max(record.peak, sample.peak);
    record.on_host = std::max(record.on_host, sample.on_host);
    record.seconds = std::max(record.seconds, sample.seconds);
  }
  const auto step_tokens =
      static_cast<double>(setup_.inputs.train.global_batch * setup_.inputs.data.sequence_length);
  record.tokens_per_second = step_tokens / record.seconds;
  record.weight_quantization_error = quantized.weights.relative_error();
  record.gradient_quantization_error = quantized.gradients.relative_error();
  record.replica_quantization_error = quantized.replicas.relative_error();
  record.outer_quantization_error = quantized.outer.relative_error();
  if (std::isfinite(utilization)) record.utilization = utilization;
  if (std::isfinite(joules)) record.joules = joules;
  if (joules > 0) record.tokens_per_joule = step_tokens / joules;
  record.predicted_allocated_after_step = planned_.allocated_after_step;
  record.predicted_peak = planned_.peak;
  record.predicted_on_host = planned_.on_host;
  record_traffic(record);
  record_exposed(record, parts);
  updating_ = counters();
  for (auto& [axis, update] : updating_) {
    update.in_collectives -= sampled_[axis].in_collectives;
    update.exposed -= sampled_[axis].exposed;
  }
  former_update_ = seconds_since(update_begin_);
  if (gemm_peak_) record_utilization(record);  // may measure, which is no part of a step
}

void StepMeter::record_utilization(StepRecord& record) {
  const double peak = gemm_peak_->rate();
  const double rate = record.tokens_per_second * matmul_flops_per_token(*setup_.table);
  const bool measured = gemm_peak_->observe(rate);
  if (rate > peak && !std::exchange(doubted_peak_, true))
    spdlog::info(
        "step {} ran faster than the measured GEMM peak of {:.0f} GFLOP/s, so earlier MFU values "
        "were too high; measured again: {}",
        record.step, peak / 1e9, gemm_peak_->describe());
  else if (measured)
    log_to_file_only(
        fmt::format("measured again after step {}: {}", record.step, gemm_peak_->describe()));
  record.mfu = gemm_peak_->utilization(
      record.tokens_per_second *
      flops_per_token(setup_.inputs.model, *setup_.table, setup_.inputs.data.sequence_length));
}

void StepMeter::record_traffic(StepRecord& record) const {
  for (const auto* axis : mesh_.all()) {
    if (axis->name.empty()) continue;  // a rank by itself
    const std::int64_t sent = axis->collectives->bytes_sent() - before_.at(axis).sent;
    record.traffic[axis->name] += sent;  // an axis and its factors have one name
    record.traffic_between_nodes[axis->name] +=
        std::llround(axis->share_between_nodes * static_cast<double>(sent));
  }
}

/// Records the means over the ranks.
void StepMeter::record_exposed(StepRecord& record, std::span<const StepPart> parts) const {
  const double share = 1.0 / static_cast<double>(parts.size());
  const auto axes = mesh_.all();
  for (const auto& part : parts) {
    const auto& sample = part.measured;
    record.seconds_compute += share * (sample.seconds - sample.copies_exposed);
    if (engine_.state.memory() == device::MemoryKind::host ||
        setup_.inputs.memory.activation_offload)
      record.exposed["offload"] += share * sample.copies_exposed;
    for (std::size_t i = 0; i < std::min(axes.size(), sample.axes.size()); ++i) {
      const auto& [in_collectives, exposed] = sample.axes[i];
      record.seconds_compute -= share * exposed;
      if (axes[i]->name.empty()) continue;  // a rank by itself
      if (device::kind() == device::Kind::cpu)
        record.in_collectives[axes[i]->name] += share * in_collectives;
      record.exposed[axes[i]->name] += share * exposed;
    }
  }
}

}  // namespace llamesh::train
