#include "device/simulated/simulation.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "device/queue.hpp"

namespace llamesh::device {
namespace {

thread_local Simulation* active_simulation = nullptr;

}  // namespace

/// A point in time of a simulated stream.
struct Simulation::Moment final : Event::State {
  Moment(Simulation& of, double when) : simulation(of), time(when) {}

  bool ready() override { return simulation.host_ >= time; }
  void wait() override { simulation.host_ = std::max(simulation.host_, time); }

  Simulation& simulation;
  double time;
};

/// A stream as a clock: when the work in it is done.
class Simulation::Queue final : public Stream::Queue {
 public:
  explicit Queue(Simulation& simulation) : simulation_(simulation) {}

  Kind kind() const override { return Kind::simulated; }
  void run(std::function<void()> work) override { work(); }
  void wait(const Event& event) override {
    const auto* moment = dynamic_cast<const Moment*>(state_of(event));
    expects(moment != nullptr, "a simulated stream waits for an event of another device");
    const double start = std::max(now_, simulation_.host_);
    if (this == simulation_.compute_queue_)
      simulation_.exposed_ += std::max(0.0, moment->time - start);
    set(std::max(start, moment->time));
  }
  std::shared_ptr<Event::State> record() override {
    return std::make_shared<Moment>(simulation_, now_);
  }

  void advance(double seconds) { set(std::max(now_, simulation_.host_) + seconds); }
  double now() const { return now_; }

 private:
  /// A CPU computes on the thread that enqueues the work.
  void set(double time) {
    now_ = time;
    if (this == simulation_.compute_queue_ && simulation_.hardware_.kind == Kind::cpu)
      simulation_.host_ = std::max(simulation_.host_, time);
  }

  Simulation& simulation_;
  double now_ = 0;
};

Simulation::Simulation(Hardware hardware) : hardware_(std::move(hardware)) {
  expects(active_simulation == nullptr, "a simulation within another one");
  active_simulation = this;
  auto queue = std::make_unique<Queue>(*this);
  compute_queue_ = queue.get();
  compute_ = std::make_unique<Stream>(std::move(queue));
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

double Simulation::now() const {
  return std::max(host_, compute_queue_->now());
}

void Simulation::run(Stream& stream, double seconds) {
  auto* queue = dynamic_cast<Queue*>(stream.queue());
  expects(queue != nullptr, "simulated work in the stream of another device");
  queue->advance(seconds);
}

void Simulation::keep_scratch(const char* of, std::int64_t bytes) {
  Buffer& buffer = scratch_[of];
  if (buffer.bytes() >= bytes) return;
  const AllocatesFor use(MemoryUse::scratch);
  buffer = {};  // first, as a Scratch does
  buffer = Buffer(bytes);
}

std::unique_ptr<Stream::Queue> Simulation::make_queue() {
  return std::make_unique<Queue>(*this);
}

std::unique_ptr<Stream::Queue> make_simulated_queue() {
  return Simulation::current().make_queue();
}

void simulate_copy(Stream& stream, std::size_t bytes) {
  auto& simulation = Simulation::current();
  const auto& hardware = simulation.hardware();
  simulation.run(stream,
                 hardware.launch_seconds + static_cast<double>(bytes) / hardware.memory_bandwidth);
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
