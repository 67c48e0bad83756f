#include "device/simulated/simulation.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "device/buffer.hpp"
#include "device/device.hpp"

namespace llamesh::device {
namespace {

Hardware gpu() {
  Hardware hardware;
  hardware.memory_bandwidth = 1e9;
  return hardware;
}

TEST(Simulation, ReplacesTheDeviceOfItsThreadWhileItLives) {
  auto& meter = MemoryMeter::instance();
  const auto before = meter.in_use();
  {
    const Simulation simulation(gpu());
    EXPECT_EQ(kind(), Kind::simulated);
    EXPECT_EQ(compute_stream().kind(), Kind::simulated);
    constexpr auto bytes = std::int64_t{1} << 38U;  // a quarter of a TiB, address space only
    const Buffer huge(bytes);
    EXPECT_EQ(MemoryMeter::instance().in_use(), bytes);
    EXPECT_EQ(meter.in_use(), before);
  }
  EXPECT_EQ(kind(), Kind::cpu);
  EXPECT_EQ(compute_stream().kind(), Kind::cpu);
  EXPECT_EQ(&MemoryMeter::instance(), &meter);
}

TEST(Simulation, RoutingIsUniformUnlessItSaysOtherwise) {
  EXPECT_EQ(Simulation(gpu()).expert_imbalance(), 1);
  EXPECT_EQ(Simulation(gpu(), 2.5).expert_imbalance(), 2.5);
  EXPECT_THROW(Simulation(gpu(), 0.5), Error);
}

TEST(Simulation, MemoryIsThatOfNobody) {
  const Simulation simulation(gpu());
  const Buffer buffer(4096);
  EXPECT_DEATH(*buffer.data() = std::byte{1}, "");
}

TEST(Simulation, StreamsOverlapAndWaitForEachOther) {
  Simulation simulation(gpu());
  auto& compute = compute_stream();
  auto communication = Stream::communication();
  simulation.run(compute, 1);
  communication.wait(compute.record());
  simulation.run(communication, 3);
  const auto arrived = communication.record();
  simulation.run(compute, 1);
  EXPECT_DOUBLE_EQ(simulation.now(), 2);
  EXPECT_FALSE(arrived.ready());
  compute.wait(arrived);  // it arrives at 4
  EXPECT_DOUBLE_EQ(simulation.now(), 4);
  EXPECT_DOUBLE_EQ(simulation.exposed_seconds(), 2);
  simulation.run(compute, 1);
  compute.wait(arrived);
  EXPECT_DOUBLE_EQ(simulation.now(), 5);
  EXPECT_DOUBLE_EQ(simulation.exposed_seconds(), 2);
}

TEST(Simulation, WorkStartsWhenTheHostHasWaited) {
  Simulation simulation(gpu());
  auto communication = Stream::communication();
  simulation.run(compute_stream(), 2);
  compute_stream().record().wait();
  simulation.run(communication, 1);
  compute_stream().wait(communication.record());
  EXPECT_DOUBLE_EQ(simulation.now(), 3);
}

TEST(Simulation, ACpuComputesOnTheHostsThread) {
  Hardware hardware = gpu();
  hardware.kind = Kind::cpu;
  Simulation simulation(hardware);
  auto communication = Stream::communication();
  simulation.run(compute_stream(), 2);
  simulation.run(communication, 1);  // called once the computation is done
  compute_stream().wait(communication.record());
  EXPECT_DOUBLE_EQ(simulation.now(), 3);
}

TEST(Simulation, AKernelWithATableTakesWhatWasMeasured) {
  Hardware hardware = gpu();
  hardware.measured.ranks = 1;
  hardware.measured.kernels[DType::bf16]["rope"].points = {{100, 50}};
  Simulation simulation(hardware);
  std::vector<KernelCall> log;
  simulation.log_kernels(&log);
  const auto seconds_of = [&](const char* kernel, double amount) {
    const double start = simulation.now();
    simulation.set_kernel(kernel);
    simulation.run_kernel(compute_stream(), amount, amount, 7);
    return simulation.now() - start;
  };
  EXPECT_DOUBLE_EQ(seconds_of("rope", 200), 7);  // before the dtype is known
  simulation.use_rates_of(DType::bf16);
  EXPECT_DOUBLE_EQ(seconds_of("rope", 200), 4);
  EXPECT_DOUBLE_EQ(seconds_of("rope", 1), 2);  // as long as the smallest
  EXPECT_DOUBLE_EQ(seconds_of("copy", 200), 7);
  simulation.use_rates_of(DType::f32);
  EXPECT_DOUBLE_EQ(seconds_of("rope", 200), 7);
  ASSERT_EQ(log.size(), 5U);
  EXPECT_EQ(log[3].name, "copy");
  EXPECT_EQ(log[3].amount, 200);
}

TEST(Simulation, WorkOnTheCoresDelaysTheComputation) {
  Hardware hardware = gpu();
  hardware.kind = Kind::cpu;
  Simulation simulation(hardware);
  auto communication = Stream::communication();
  simulation.run(compute_stream(), 2);
  simulation.run_on_cores(communication, 3);
  simulation.run(compute_stream(), 1);
  compute_stream().wait(communication.record());
  EXPECT_DOUBLE_EQ(simulation.now(), 6);
  EXPECT_DOUBLE_EQ(simulation.exposed_seconds(), 3);
}

TEST(MemoryUse, PeakSaysWhatWasInUse) {
  MemoryMeter& meter = MemoryMeter::instance();
  const auto at = [](const MemoryByUse& bytes, MemoryUse use) {
    return bytes[static_cast<std::size_t>(use)];
  };
  const auto before = meter.by_use();
  const ScopedAllocation weights(100, MemoryUse::weights);
  meter.start_interval();
  {
    const ScopedMemoryTag use(MemoryUse::gathered_weights);
    const ScopedAllocation gathered(30);
  }
  const ScopedAllocation later(20, MemoryUse::optimizer);
  EXPECT_EQ(at(meter.by_use_at_peak(), MemoryUse::gathered_weights) -
                at(before, MemoryUse::gathered_weights),
            30);
  EXPECT_EQ(at(meter.by_use_at_peak(), MemoryUse::optimizer) - at(before, MemoryUse::optimizer), 0);
  EXPECT_EQ(at(meter.by_use(), MemoryUse::gathered_weights),
            at(before, MemoryUse::gathered_weights));
  EXPECT_EQ(at(meter.by_use(), MemoryUse::weights) - at(before, MemoryUse::weights), 100);
}

}  // namespace
}  // namespace llamesh::device
