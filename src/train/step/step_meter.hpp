#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "comm/mesh/device_mesh.hpp"
#include "device/energy.hpp"
#include "device/utilization.hpp"
#include "train/engine/engine.hpp"
#include "train/engine/flops.hpp"
#include "train/records/step_part.hpp"
#include "train/records/step_record.hpp"
#include "train/setup/setup.hpp"

namespace llamesh::train {

/// Meter for a step's speed, memory and traffic on a rank, and beside them the memory that was
/// planned.
class StepMeter {
 public:
  /// Borrows the arguments. `threads` is this rank's number of compute threads.
  StepMeter(const comm::Communicator& world, const Setup& setup, const comm::DeviceMesh& mesh,
            Engine& engine, int threads);

  /// Plans memory with Setup::plan_memory, if there is one, once the bf16 matmul method is known.
  /// Collective.
  void plan_memory();
  /// Describes a step's memory on the rank with the highest peak, as planned before the first step.
  std::string describe_memory() const;

  /// Names the counters of energy that this rank reads; empty: none.
  std::string describe_energy() const { return energy_.describe(); }

  /// Measures the peak GEMM rate over all ranks together, the denominator of MFU. Called before the
  /// first step; without it no MFU is known. Takes a fifth of a second. Collective.
  void measure_gemm_peak();
  /// Returns the peak GEMM rate, if it has been measured.
  const std::optional<GemmPeak>& gemm_peak() const { return gemm_peak_; }
  /// Starts over after the bf16 matmul method has changed. Collective.
  void on_bf16_products_changed();

  /// Begins a step.
  void begin_step();
  /// Notes the seconds for which this rank waited for others to read their data.
  void note_wait_for_data(double seconds) { waited_ = seconds; }
  /// Returns this rank's measurements after the step's passes.
  StepSample sample();
  /// Begins what follows the last exchange of samples; it counts in the next step.
  void begin_update() { update_begin_ = Clock::now(); }
  /// Adds the measurements, given each rank's part, and ends the step.
  void end_step(StepRecord& record, std::span<const StepPart> parts);

 private:
  using Clock = std::chrono::steady_clock;
  /// An axis' totals.
  struct AxisCounters {
    std::int64_t sent = 0;  ///< bytes
    double in_collectives = 0, exposed = 0;
  };
  using CountersByAxis = std::map<const comm::DeviceMesh::Axis*, AxisCounters>;

  CountersByAxis counters() const;
  SecondsByAxis seconds_by_axis() const;
  void record_utilization(StepRecord& record);
  void record_traffic(StepRecord& record) const;
  void record_exposed(StepRecord& record, std::span<const StepPart> parts) const;

  const comm::Communicator& world_;
  const Setup& setup_;
  const comm::DeviceMesh& mesh_;
  Engine& engine_;
  int threads_;
  std::optional<GemmPeak> gemm_peak_;
  bool doubted_peak_ = false;  ///< the log says that a step was faster than it
  device::EnergyMeter energy_;
  device::UtilizationMeter utilization_;
  double step_joules_ = 0;  ///< as in StepSample: a step may be sampled twice
  PlannedMemory planned_;   ///< maximum over the ranks
  // For the current step.
  Clock::time_point begin_, update_begin_;
  double former_update_ = 0;  ///< seconds for the previous step's update
  double waited_ = 0;         ///< seconds until the others had read their data
  double copies_exposed_before_ = 0;
  CountersByAxis before_, sampled_;
  CountersByAxis updating_;  ///< what the previous step's update added
};

}  // namespace llamesh::train
