#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>

#include "train/records/step_record.hpp"

namespace llamesh::train {

/// A quantity's metric in the file for node_exporter.
struct Gauge {
  enum class Type : std::uint8_t { gauge, counter };
  const char* name = nullptr;  ///< after "llamesh_"; null: none
  int place = 0;               ///< among these metrics in the file, from 1
  Type type = Type::gauge;
};

/// When metrics.jsonl has a quantity; what is unknown is always left out.
enum class Presence : std::uint8_t {
  always,
  with_axes,    ///< if ranks wait for an axis
  unless_empty  ///< of a map
};

/// Records that have a quantity.
enum class Measured : std::uint8_t {
  in_steps,
  in_validation_too  ///< written with the loss of a validation set as well
};

/// A quantity in StepRecord, and where a run writes it. Only single numbers have gauges.
template <class T>
struct Quantity {
  const char* key;  ///< in metrics.jsonl; "memory.peak" is `peak` in the object `memory`
  T StepRecord::*member;
  const char* unit;
  const char* help;           ///< one sentence, also in the file for node_exporter
  const char* tag = nullptr;  ///< in TensorBoard; "/AXIS" follows if it is by axis. Null: none
  Gauge gauge = {};
  Presence presence = Presence::always;
  Measured measured = Measured::in_steps;
};
template <class T, class... Rest>
Quantity(const char*, T StepRecord::*, Rest...) -> Quantity<T>;

/// All quantities of a step, in the order in which metrics.jsonl has them. Writing and reading
/// metrics.jsonl, TensorBoard's tags, the metrics for node_exporter and the table in
/// docs/training.md follow from it.
inline constexpr auto step_quantities = [] {
  using R = StepRecord;
  using enum Gauge::Type;
  const auto of_pairs = [](const char* key, std::optional<double> R::*member, const char* unit,
                           const char* help, const char* tag) {
    return Quantity{
        key, member, unit, help, tag, Gauge{}, Presence::always, Measured::in_validation_too};
  };
  return std::tuple{
      Quantity{"step", &R::step, "", "Steps done."},
      Quantity{"loss", &R::loss, "nats", "Loss of the latest step, nats per token.", "train/loss",
               Gauge{"loss", 1}, Presence::always, Measured::in_validation_too},
      Quantity{"grad_norm", &R::grad_norm, "", "Gradient norm before clipping.", "train/grad_norm",
               Gauge{"grad_norm", 2}},
      Quantity{"lr", &R::lr, "", "Learning rate.", "train/lr", Gauge{"learning_rate", 3}},
      Quantity{"lr_muon", &R::lr_muon, "", "Learning rate of the matrices that Muon updates.",
               "train/lr_muon"},
      Quantity{"tokens", &R::tokens, "tokens", "Tokens trained on since the start of the run.",
               "train/tokens", Gauge{"tokens", 4, counter}},
      Quantity{"seconds", &R::seconds, "s", "Duration of the latest step.", "speed/seconds",
               Gauge{"step_seconds", 6}},
      Quantity{"tokens_per_second", &R::tokens_per_second, "tokens/s",
               "Training speed over all ranks.", "speed/tokens_per_second",
               Gauge{"tokens_per_second", 5}},
      Quantity{"memory.valley", &R::allocated_after_step, "bytes",
               "Memory after the step of the rank that uses most.", "memory/valley"},
      Quantity{"memory.peak", &R::peak, "bytes", "Peak memory of the rank that uses most.",
               "memory/peak", Gauge{"memory_peak_bytes", 8}},
      Quantity{"memory.predicted_valley", &R::predicted_allocated_after_step, "bytes",
               "Memory after a step as planned."},
      Quantity{"memory.predicted_peak", &R::predicted_peak, "bytes", "Peak memory as planned."},
      Quantity{"memory.host", &R::on_host, "bytes",
               "Host memory beside it after the step, of the rank that uses most."},
      Quantity{"memory.predicted_host", &R::predicted_on_host, "bytes", "Host memory as planned."},
      Quantity{"traffic", &R::traffic, "bytes", "Bytes that rank 0 sent along an axis.", "traffic"},
      Quantity{"traffic_between_nodes", &R::traffic_between_nodes, "bytes",
               "Bytes sent to other nodes along an axis, mean over ranks.",
               "traffic_between_nodes"},
      Quantity{"quantization_error.weights", &R::weight_quantization_error, "ratio",
               "Relative error of gathered weights by quantization.", "quantization_error/weights"},
      Quantity{"quantization_error.gradients", &R::gradient_quantization_error, "ratio",
               "Relative error of scattered gradients by quantization.",
               "quantization_error/gradients"},
      Quantity{"quantization_error.replicas", &R::replica_quantization_error, "ratio",
               "Relative error of gradients that replicas add up, by quantization.",
               "quantization_error/replicas"},
      Quantity{"quantization_error.outer", &R::outer_quantization_error, "ratio",
               "Relative error of what replicas exchanged, by quantization.",
               "quantization_error/outer"},
      of_pairs("rewards.chosen", &R::chosen_reward, "",
               "Reward of preferred answers, beta times their log-ratio to the reference model.",
               "rewards/chosen"),
      of_pairs("rewards.rejected", &R::rejected_reward, "", "Reward of rejected answers.",
               "rewards/rejected"),
      of_pairs("rewards.margins", &R::reward_margin, "",
               "Reward of the preferred answer less that of the rejected one.", "rewards/margins"),
      of_pairs("rewards.accuracies", &R::reward_accuracy, "ratio",
               "Share of pairs whose preferred answer has the larger reward, 0 to 1.",
               "rewards/accuracies"),
      of_pairs("logps.chosen", &R::chosen_log_prob, "nats", "Log-probability of preferred answers.",
               "logps/chosen"),
      of_pairs("logps.rejected", &R::rejected_log_prob, "nats",
               "Log-probability of rejected answers.", "logps/rejected"),
      Quantity{"layer_grad_norm", &R::layer_grad_norm, "",
               "Gradient norm of a layer before clipping.", "layer_grad_norm", Gauge{},
               Presence::unless_empty},
      Quantity{"layer_weight_norm", &R::layer_weight_norm, "",
               "Norm of a layer's weights before the update.", "layer_weight_norm", Gauge{},
               Presence::unless_empty},
      Quantity{"time", &R::time, "s", "Unix time at which the step was written."},
      Quantity{"seconds_compute", &R::seconds_compute, "s",
               "Part of the step without waiting, mean over ranks.", nullptr, Gauge{},
               Presence::with_axes},
      Quantity{"exposed", &R::exposed, "s",
               "Part of the step in which ranks waited for an axis, mean over ranks.", "exposed",
               Gauge{}, Presence::with_axes},
      Quantity{"mfu", &R::mfu, "ratio", "Model FLOPs utilization, 0 to 1.", "speed/mfu",
               Gauge{"mfu_ratio", 7}},
      Quantity{"utilization", &R::utilization, "ratio",
               "Share of the time in which devices were busy, 0 to 1.", "speed/utilization"},
      Quantity{"joules", &R::joules, "J", "Energy since the previous step.", "energy/joules",
               Gauge{"step_joules", 9}},
      Quantity{"tokens_per_joule", &R::tokens_per_joule, "tokens/J",
               "Tokens of the latest step per joule.", "energy/tokens_per_joule",
               Gauge{"tokens_per_joule", 10}},
      Quantity{"experts", &R::experts, "", "Balance of experts.", "experts"}};
}();

/// Calls visit(quantity) for each of step_quantities.
template <class Visit>
constexpr void for_each_quantity(Visit visit) {
  std::apply([&](const auto&... quantity) { (visit(quantity), ...); }, step_quantities);
}

/// Stands for a count that a line in metrics.jsonl lacks; for other numbers it is NaN.
inline constexpr std::int64_t unknown_count = -1;

// Return a single number in StepRecord if it is known.
inline std::optional<double> known(double value) {
  return value;
}
inline std::optional<double> known(const std::optional<double>& value) {
  return value;
}
inline std::optional<double> known(std::int64_t count) {
  return count == unknown_count ? std::nullopt : std::optional(static_cast<double>(count));
}

/// Returns a single number in StepRecord; NaN if it is unknown.
template <class T>
auto number(const T& value) -> decltype(known(value).value_or(0.0)) {
  return known(value).value_or(std::numeric_limits<double>::quiet_NaN());
}

}  // namespace llamesh::train
