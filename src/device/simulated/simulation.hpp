#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>

#include "device/buffer.hpp"
#include "device/hardware.hpp"
#include "device/memory_meter.hpp"
#include "device/stream.hpp"

/// A device on which nothing is computed: memory is reserved addresses that nobody may touch, a
/// kernel or collective is the time that it takes. So the engine itself, run on it, says what
/// memory, traffic and time a step takes, on any hardware and for any number of ranks.
namespace llamesh::device {

/// While it lives, device::kind() of the calling thread is Kind::simulated, and this thread's
/// buffers, streams and meter are its own; other threads, and what this thread had before, go on as
/// they are. What is made within must be destroyed within. They do not nest.
class Simulation {
 public:
  explicit Simulation(Hardware hardware);
  ~Simulation();
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  /// That of the calling thread, or null.
  static Simulation* active();
  /// The same where there must be one.
  static Simulation& current();

  const Hardware& hardware() const { return hardware_; }
  MemoryMeter& meter() { return meter_; }
  /// Counts the pinned memory of the host.
  MemoryMeter& host_meter() { return host_meter_; }
  Stream& compute_stream() { return *compute_; }
  /// Its work takes the host's time.
  Stream& host_stream() { return *host_work_; }
  /// Bytes/s of the memory that the stream's kernels use.
  double memory_bandwidth(const Stream& stream) const;

  /// Seconds since the start at which the host and the work in the compute stream arrive.
  double now() const;
  /// Seconds that the compute stream, or the host beyond it, has waited for events of other
  /// streams.
  double exposed_seconds() const { return exposed_; }

  /// Puts work of so many seconds into a simulated stream.
  void run(Stream& stream, double seconds);
  /// Scratch that a kernel keeps and that grows to the largest request; `of` names it.
  void keep_scratch(const char* of, std::int64_t bytes);
  /// Bytes so far between the memory of the host and that of the device.
  std::int64_t copied_by_host() const { return copied_by_host_; }
  void count_host_copy(std::int64_t bytes) { copied_by_host_ += bytes; }
  /// The host spends so many seconds before it goes on.
  void host_waits(double seconds) { host_ += seconds; }

 private:
  class Queue;
  struct Moment;
  std::unique_ptr<Stream::Queue> make_queue();
  double computed() const;  ///< when the work in the compute stream is done
  friend std::unique_ptr<Stream::Queue> make_simulated_queue();

  Hardware hardware_;
  MemoryMeter meter_, host_meter_;
  std::map<std::string_view, Buffer> scratch_;
  std::int64_t copied_by_host_ = 0;
  double host_ = 0;  ///< the host's clock
  double exposed_ = 0;
  std::unique_ptr<Stream> compute_, host_work_;
};

/// A stream's queue of the current simulation.
std::unique_ptr<Stream::Queue> make_simulated_queue();

/// A copy or a fill that reads and writes so many bytes of the device's memory.
void simulate_copy(Stream& stream, std::size_t bytes);

/// A copy of so many bytes between the memory of the host and that of the device.
void simulate_host_copy(Stream& stream, std::size_t bytes);

/// Addresses that belong to nobody else, without memory: reading or writing them is a crash.
std::shared_ptr<void> reserve_addresses(std::int64_t bytes);

}  // namespace llamesh::device
