#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "device/buffer.hpp"
#include "device/hardware.hpp"
#include "device/memory_meter.hpp"
#include "device/stream.hpp"

/// A device that computes nothing: memory is reserved address space, and a kernel or collective is
/// the time that it takes. The engine itself, run on this device, thus reports a step's memory,
/// traffic and time for any hardware and any number of ranks.
namespace llamesh::device {

/// Work of one simulated kernel.
struct KernelCall {
  std::string_view name;  ///< in ops/kernels.inc
  double size = 0;        ///< as in MeasuredRates::kernels
  double amount = 0;      ///< FLOPs of a matrix product, else bytes
};

/// While it lives, device::kind() is Kind::simulated on the calling thread, which gets its own
/// buffers, streams and meter. Other threads and this thread's earlier objects are unaffected.
/// Objects created within must be destroyed within. Simulations do not nest.
class Simulation {
 public:
  /// `expert_imbalance`: 1 or more, see expert_imbalance().
  explicit Simulation(Hardware hardware, double expert_imbalance = 1);
  ~Simulation();
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  /// Returns the calling thread's simulation, or null.
  static Simulation* active();
  /// Returns the calling thread's simulation; there must be one.
  static Simulation& current();

  const Hardware& hardware() const { return hardware_; }
  /// Returns the rows that this rank receives along an expert axis, relative to their mean over the
  /// axis: tokens choose experts, so a device that computes nothing cannot know.
  double expert_imbalance() const { return expert_imbalance_; }
  MemoryMeter& meter() { return meter_; }
  /// Counts pinned host memory.
  MemoryMeter& host_meter() { return host_meter_; }
  Stream& compute_stream() { return *compute_; }
  /// Its work takes host time.
  Stream& host_stream() { return *host_work_; }
  /// Returns the bytes/s for the memory that the stream's kernels use.
  double memory_bandwidth(const Stream& stream) const;

  /// Returns the time in seconds when both the host and the compute stream are done.
  double now() const;
  /// Returns the seconds that the compute stream, or the host beyond it, has waited for events on
  /// other streams.
  double exposed_seconds() const { return exposed_; }

  /// Queues work that takes `seconds` on a simulated stream.
  void run(Stream& stream, double seconds);
  /// Returns the time when a simulated stream's work is done.
  double time_of(const Stream& stream) const;
  /// Queues work on a communication stream that occupies the computation's cores.
  void run_on_cores(Stream& stream, double seconds);
  /// Queues the arrival of data from another simulated rank on a communication stream: it is not
  /// done before when(), which is asked once someone waits for it.
  void run_until(Stream& stream, std::function<double()> when);
  /// Names the kernel that the next run_kernel() is for.
  void set_kernel(std::string_view name) { kernel_ = name; }
  /// Uses the measured rates for kernels of a run in this dtype.
  void use_rates_of(DType dtype);
  /// Queues a kernel that takes `seconds` unless its rate is measured.
  void run_kernel(Stream& stream, double size, double amount, double seconds);
  /// Appends each kernel to `log` from now on.
  void log_kernels(std::vector<KernelCall>* log) { kernel_log_ = log; }
  void clear_kernel_log() {
    if (kernel_log_) kernel_log_->clear();
  }
  /// Counts scratch that a kernel keeps, which grows to the largest request. `of` is its name.
  void keep_scratch(const char* of, std::int64_t bytes);
  /// Returns the bytes copied so far between host and device memory.
  std::int64_t copied_by_host() const { return copied_by_host_; }
  void count_host_copy(std::int64_t bytes) { copied_by_host_ += bytes; }
  /// Advances the host's clock by `seconds`.
  void host_waits(double seconds) { host_ += seconds; }
  /// Advances it to `time`, if that is later.
  void host_waits_until(double time) { host_ = std::max(host_, time); }

 private:
  class Queue;
  struct QueueTime;
  std::unique_ptr<Stream::Queue> make_queue();
  double computed() const;  ///< when the compute stream is done
  friend std::unique_ptr<Stream::Queue> make_simulated_queue();

  Hardware hardware_;
  double expert_imbalance_;
  MemoryMeter meter_, host_meter_;
  std::map<std::string_view, Buffer> scratch_;
  std::int64_t copied_by_host_ = 0;
  double host_ = 0;  ///< the host's clock
  double exposed_ = 0;
  std::string_view kernel_;
  const RateTables* kernel_rates_ = nullptr;  ///< null: not measured
  std::vector<KernelCall>* kernel_log_ = nullptr;
  std::unique_ptr<Stream> compute_, host_work_;
};

/// Returns a stream queue in the current simulation.
std::unique_ptr<Stream::Queue> make_simulated_queue();

/// Simulates a copy or fill that reads and writes `bytes` of device memory.
void simulate_copy(Stream& stream, std::size_t bytes);

/// Simulates a copy between host and device memory.
void simulate_host_copy(Stream& stream, std::size_t bytes);

/// Reserves unique addresses without memory: accessing them crashes.
std::shared_ptr<void> reserve_addresses(std::int64_t bytes);

}  // namespace llamesh::device
