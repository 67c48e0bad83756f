#include "device/simulated/simulation.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "device/queue.hpp"

namespace llamesh::device {
namespace {

thread_local Simulation* active_simulation = nullptr;

}  // namespace

namespace {

/// A time that is known once someone asks.
class Arrival {
 public:
  explicit Arrival(std::function<double()> when) : when_(std::move(when)) {}
  double time() {
    if (!time_) time_ = when_();
    return *time_;
  }

 private:
  std::function<double()> when_;
  std::optional<double> time_;
};

}  // namespace

/// A point in time on a simulated stream.
struct Simulation::QueueTime final : Event::State {
  QueueTime(Simulation& of, double at_least, std::shared_ptr<Arrival> of_data)
      : simulation(of), earliest(at_least), arrival(std::move(of_data)) {}

  bool ready() override { return simulation.host_ >= time(); }
  void wait() override { simulation.host_waits_until(time()); }
  double time() const { return arrival ? std::max(earliest, arrival->time()) : earliest; }

  Simulation& simulation;
  double earliest;
  std::shared_ptr<Arrival> arrival;  ///< null: done at `earliest`
};

/// A stream as a clock: the time when its work is done.
class Simulation::Queue final : public Stream::Queue {
 public:
  /// `is_host`: the work takes host time, and the host waits for nothing else meanwhile.
  Queue(Simulation& simulation, bool is_compute, bool is_host)
      : simulation_(simulation), is_compute_(is_compute), is_host_(is_host) {}

  Kind kind() const override { return Kind::simulated; }
  void run(std::function<void()> work) override { work(); }
  void wait(const Event& event) override {
    const auto* moment = dynamic_cast<const QueueTime*>(state_of(event));
    expects(moment != nullptr, "a simulated stream waits for an event of another device");
    settle();
    const double start = std::max(now_, simulation_.host_);
    const double time = moment->time();
    // The host may also wait for computation in the meantime.
    if (is_compute_ || is_host_)
      simulation_.exposed_ += std::max(0.0, time - std::max(start, simulation_.computed()));
    set(std::max(start, time));
  }
  std::shared_ptr<Event::State> record() override {
    return std::make_shared<QueueTime>(simulation_, now_, arrival_);
  }

  void advance(double seconds) {
    settle();
    set(std::max(now_, simulation_.host_) + seconds);
  }
  void advance_until(std::function<double()> when) {
    advance(0);
    arrival_ = std::make_shared<Arrival>(std::move(when));
  }
  double now() const { return now_; }

 private:
  /// Waits for the last arrival, behind which other work comes.
  void settle() {
    if (arrival_) set(std::max(now_, arrival_->time()));
    arrival_.reset();
  }
  void set(double time) {
    now_ = time;
    if (is_host_) simulation_.host_ = std::max(simulation_.host_, time);
  }

  Simulation& simulation_;
  bool is_compute_, is_host_;
  double now_ = 0;
  std::shared_ptr<Arrival> arrival_;  ///< the last work; null: it is done at now_
};

Simulation::Simulation(Hardware hardware, double expert_imbalance)
    : hardware_(std::move(hardware)), expert_imbalance_(expert_imbalance) {
  expects(expert_imbalance >= 1, "the busiest rank has {} times the mean rows", expert_imbalance);
  expects(active_simulation == nullptr, "a simulation within another one");
  active_simulation = this;
  // A CPU computes on the thread that enqueues the work.
  const bool on_cpu = hardware_.kind == Kind::cpu;
  compute_ = std::make_unique<Stream>(std::make_unique<Queue>(*this, /*is_compute=*/true, on_cpu));
  host_work_ = std::make_unique<Stream>(
      std::make_unique<Queue>(*this, /*is_compute=*/false, /*is_host=*/true));
}

Simulation::~Simulation() {
  active_simulation = nullptr;
}

Simulation* Simulation::active() {
  return active_simulation;
}

Simulation& Simulation::current() {
  expects(active_simulation != nullptr, "work of a simulated device outside of its simulation");
  return *active_simulation;
}

double Simulation::computed() const {
  return time_of(*compute_);
}

double Simulation::now() const {
  return std::max(host_, computed());
}

double Simulation::memory_bandwidth(const Stream& stream) const {
  return &stream == host_work_.get() ? hardware_.host_bandwidth : hardware_.memory_bandwidth;
}

void Simulation::run(Stream& stream, double seconds) {
  auto* queue = dynamic_cast<Queue*>(stream.queue());
  expects(queue != nullptr, "simulated work in the stream of another device");
  queue->advance(seconds);
}

double Simulation::time_of(const Stream& stream) const {
  return dynamic_cast<const Queue*>(stream.queue())->now();
}

void Simulation::run_until(Stream& stream, std::function<double()> when) {
  auto* queue = dynamic_cast<Queue*>(stream.queue());
  expects(queue != nullptr, "simulated work in the stream of another device");
  queue->advance_until(std::move(when));
}

void Simulation::run_on_cores(Stream& stream, double seconds) {
  run(stream, seconds);
  host_waits_until(time_of(stream));
  exposed_ += seconds;
}

void Simulation::use_rates_of(DType dtype) {
  const auto found = hardware_.measured.kernels.find(dtype);
  kernel_rates_ = found == hardware_.measured.kernels.end() ? nullptr : &found->second;
}

void Simulation::run_kernel(Stream& stream, double size, double amount, double seconds) {
  size = std::max(size, 1.0);  // an expert may have no rows
  if (kernel_log_) kernel_log_->push_back({kernel_, size, amount});
  if (kernel_rates_ && amount > 0) {
    const auto table = kernel_rates_->find(kernel_);
    if (table != kernel_rates_->end()) seconds = amount / table->second.at(size);
  }
  run(stream, seconds);
}

void Simulation::keep_scratch(const char* of, std::int64_t bytes) {
  Buffer& buffer = scratch_[of];
  if (buffer.bytes() >= bytes) return;
  const ScopedMemoryTag use(MemoryUse::scratch);
  buffer = {};  // free first, as Scratch does
  buffer = Buffer(bytes);
}

std::unique_ptr<Stream::Queue> Simulation::make_queue() {
  return std::make_unique<Queue>(*this, /*is_compute=*/false, /*is_host=*/false);
}

std::unique_ptr<Stream::Queue> make_simulated_queue() {
  return Simulation::current().make_queue();
}

void simulate_copy(Stream& stream, std::size_t bytes) {
  auto& simulation = Simulation::current();
  const auto& hardware = simulation.hardware();
  simulation.run(stream, hardware.launch_seconds +
                             static_cast<double>(bytes) / simulation.memory_bandwidth(stream));
}

void simulate_host_copy(Stream& stream, std::size_t bytes) {
  auto& simulation = Simulation::current();
  const auto& hardware = simulation.hardware();
  simulation.count_host_copy(static_cast<std::int64_t>(bytes));
  simulation.run(stream, hardware.launch_seconds + static_cast<double>(bytes) / hardware.host_link);
}

std::shared_ptr<void> reserve_addresses(std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  void* at = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    fail(ExitCode::bad_input,
         "cannot reserve {} bytes of addresses to simulate them; raise the limit of ulimit -v",
         bytes);
  return {at, [size](void* p) { munmap(p, size); }};
}

}  // namespace llamesh::device
