#include <algorithm>
#include <cmath>

#include "core/log.hpp"
#include "device/device.hpp"
#include "train/flops.hpp"
#include "train/trainer.hpp"

// A step's measurements: speed, memory and traffic.
namespace llamesh::train {

/// Adds the measurements to the record: the maximum time and memory over the ranks.
void Trainer::measure(StepRecord& record, const std::vector<StepPart>& parts) {
  for (const auto& part : parts) {
    record.valley = std::max(record.valley, part.in_use);
    record.peak = std::max(record.peak, part.peak);
    record.on_host = std::max(record.on_host, part.on_host);
    record.seconds = std::max(record.seconds, part.seconds);
    record.request = std::max(record.request, part.request);
  }
  const auto step_tokens =
      static_cast<double>(setup_.inputs.train.global_batch * setup_.inputs.data.sequence_length);
  record.tokens_per_second = step_tokens / record.seconds;
  record.predicted_valley = planned_.valley;
  record.predicted_peak = planned_.peak;
  record.predicted_on_host = planned_.on_host;
  if (peak_) measure_utilization(record);
  for (const auto* axis : mesh_.all()) {
    if (axis->name.empty()) continue;  // a rank by itself
    const std::int64_t sent = axis->collectives->bytes_sent() - before_[axis].sent;
    record.traffic[axis->name] += sent;  // an axis and its factors have one name
    record.traffic_between_nodes[axis->name] +=
        std::llround(axis->share_between_nodes * static_cast<double>(sent));
  }
  if (device::kind() == device::Kind::cpu) measure_exposed(record, parts);
}

void Trainer::measure_utilization(StepRecord& record) {
  const double peak = peak_->rate();
  if (peak_->observe(record.tokens_per_second * matmul_flops_per_token(*setup_.table)))
    spdlog::info(
        "step {} ran faster than the measured GEMM peak of {:.0f} GFLOP/s: the peak is {:.0f} from "
        "here on, and earlier MFU values were too high",
        record.step, peak / 1e9, peak_->rate() / 1e9);
  record.mfu = peak_->utilization(
      record.tokens_per_second *
      flops_per_token(setup_.inputs.model, *setup_.table, setup_.inputs.data.sequence_length));
}

Trainer::SecondsByAxis Trainer::seconds_by_axis() {
  SecondsByAxis seconds;
  const auto axes = mesh_.all();
  for (std::size_t i = 0; i < std::min(axes.size(), seconds.size()); ++i) {
    const auto& collectives = *axes[i]->collectives;
    const auto& before = before_[axes[i]];
    seconds[i] = {static_cast<float>(collectives.seconds() - before.in_collectives),
                  static_cast<float>(collectives.seconds_exposed() - before.exposed)};
  }
  return seconds;
}

/// Records the means over the ranks, and the slow ranks.
void Trainer::measure_exposed(StepRecord& record, const std::vector<StepPart>& parts) {
  const double share = 1.0 / static_cast<double>(parts.size());
  const auto axes = mesh_.all();
  std::vector<double> own;
  for (const auto& part : parts) own.push_back(part.own_seconds);
  record.stragglers = stragglers_.observe(own);
  for (const auto& part : parts) {
    record.seconds_compute += share * (part.seconds - part.copies_exposed);
    if (state_.memory() == device::MemoryKind::host || setup_.inputs.memory.activation_offload)
      record.exposed["offload"] += share * part.copies_exposed;
    for (std::size_t i = 0; i < std::min(axes.size(), part.axes.size()); ++i) {
      const auto& [in_collectives, exposed] = part.axes[i];
      record.seconds_compute -= share * exposed;
      if (axes[i]->name.empty()) continue;  // a rank by itself
      record.in_collectives[axes[i]->name] += share * in_collectives;
      record.exposed[axes[i]->name] += share * exposed;
    }
  }
}

}  // namespace llamesh::train
