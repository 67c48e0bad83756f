#include "plan/kernel_rates.hpp"

#include <chrono>
#include <cmath>
#include <string_view>
#include <vector>

#include "comm/mesh/device_mesh.hpp"
#include "core/trace.hpp"
#include "plan/step_plan.hpp"
#include "train/step/trainer.hpp"

namespace llamesh::plan {
namespace {

using Clock = std::chrono::steady_clock;

/// Seconds of each call in a step, by kernel.
using KernelSeconds = std::map<std::string, std::vector<double>, std::less<>>;

/// Adds the seconds of a step's kernels.
void trace_step(train::Trainer& trainer, KernelSeconds& seconds) {
  auto& trace = Trace::instance();
  trace.start();
  trainer.train_step();
  trace.stop();
  std::map<std::string_view, std::size_t> calls;
  const auto recording = trace.take();
  for (const auto& event : recording.events) {
    if (std::string_view(event.category.data()) != "kernel") continue;
    const std::string_view name = event.name.data();
    auto& of_kernel = seconds[std::string(name)];
    const auto call = calls[name]++;
    if (of_kernel.size() <= call) of_kernel.resize(call + 1);
    of_kernel[call] += 1e-9 * static_cast<double>(event.end - event.start);
  }
}

}  // namespace

void KernelRates::measure(const comm::Communicator& world, const train::Inputs& in,
                          double seconds) {
  const auto self = world.split(world.rank(), 0, "a rank by itself");
  const auto setup = make_planned_setup(self, in);
  comm::DeviceMesh mesh(self, setup.topology, setup.mesh);
  train::Trainer trainer(self, setup, mesh);
  trainer.start();
  trainer.train_step();  // allocates
  KernelSeconds measured;
  int steps = 0;
  world.barrier("a benchmark");
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  for (; steps == 0 || Clock::now() < end; ++steps) trace_step(trainer, measured);
  std::map<std::string_view, std::size_t> calls;
  const auto simulated = kernels_of_step(setup);
  for (const auto& call : simulated) ++calls[call.name];
  for (const auto& [name, count] : calls)
    expects(measured[std::string(name)].size() == count,
            "a step has {} calls of {}, but {} were planned", measured[std::string(name)].size(),
            name, count);
  calls.clear();
  for (const auto& [name, size, amount] : simulated) {
    const auto at = calls[name]++;
    if (amount == 0) continue;
    auto& sum = sums_[{std::string(name), static_cast<int>(std::lround(std::log2(size)))}];
    sum.seconds += measured.find(name)->second[at];
    sum.amount += steps * amount;
    sum.log_size += steps * amount * std::log(size);
  }
}

device::RateTables KernelRates::tables(const comm::Communicator& world) const {
  device::RateTables tables;
  for (const auto& [of, sum] : sums_) {
    const double seconds = world.sum(sum.seconds, "a benchmark");
    const double amount = world.sum(sum.amount, "a benchmark");
    tables[of.first].points.emplace_back(std::exp(sum.log_size / sum.amount), amount / seconds);
  }
  return tables;
}

}  // namespace llamesh::plan
