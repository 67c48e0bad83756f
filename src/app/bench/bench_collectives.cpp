#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "app/bench/bench.hpp"
#include "app/program/options.hpp"
#include "comm/mpi/mpi.hpp"
#include "comm/mpi/session.hpp"
#include "comm/transports/mpi_collectives.hpp"
#include "comm/transports/node_collectives.hpp"

namespace llamesh::app {
namespace {

/// Returns the bus bandwidth in GB/s for the fastest of five calls; each rank sends `bytes`.
template <class Work>
double rate(const comm::Communicator& world, double bytes, const Work& work) {
  double best = 1e30;
  for (int run = 0; run < 6; ++run) {  // the first run touches pages
    world.barrier();
    const auto start = std::chrono::steady_clock::now();
    work();
    world.barrier();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (run > 0) best = std::min(best, seconds.count());
  }
  return bytes / best * 1e-9;
}

struct CollectiveRates {
  double all_gather, reduce_scatter, all_reduce;
};

CollectiveRates measure(const comm::Communicator& world, comm::Collectives& axis, std::int64_t n) {
  auto gathered = axis.allocate_gathered(n * 4);
  auto parts = axis.allocate_symmetric(n * 4 * axis.size());
  device::Buffer own(n * 4);
  const auto whole = gathered.tensor(DType::f32, {n * axis.size()});
  const auto all = parts.tensor(DType::f32, {n * axis.size()});
  const auto mine = own.tensor(DType::f32, {n});
  const double sent = 4.0 * static_cast<double>(n) * (axis.size() - 1);
  return {rate(world, sent, [&] { axis.all_gather(whole, mine, {}).wait(); }),
          rate(world, sent, [&] { axis.reduce_scatter(mine, all, Accumulate::no, {}).wait(); }),
          rate(world, 2 * sent, [&] { axis.all_reduce(all, {}).wait(); })};
}

CollectiveRates measure_plain(const comm::Communicator& world, std::int64_t n) {
  device::Buffer whole(n * 4 * world.size());
  device::Buffer own(n * 4);
  const auto comm = comm::native(world);
  const int count = static_cast<int>(n);
  const double sent = 4.0 * static_cast<double>(n) * (world.size() - 1);
  return {rate(world, sent,
               [&] {
                 comm::check(MPI_Allgather(own.data(), count, MPI_FLOAT, whole.data(), count,
                                           MPI_FLOAT, comm),
                             "MPI_Allgather");
               }),
          rate(world, sent,
               [&] {
                 comm::check(MPI_Reduce_scatter_block(whole.data(), own.data(), count, MPI_FLOAT,
                                                      MPI_SUM, comm),
                             "MPI_Reduce_scatter_block");
               }),
          rate(world, 2 * sent, [&] {
            comm::check(MPI_Allreduce(MPI_IN_PLACE, whole.data(), count * world.size(), MPI_FLOAT,
                                      MPI_SUM, comm),
                        "MPI_Allreduce");
          })};
}

/// Measures bus bandwidth of the ranks against plain MPI.
int bench_collectives() {
  const comm::MpiSession session;
  const auto& world = session.world();
  comm::MpiCollectives messages(world);
  const bool one_node = world.split_shared_memory().size() == world.size();
  const auto print = [&](std::int64_t mib, const char* path, const CollectiveRates& rates) {
    if (world.rank() == 0)
      fmt::print("{:>4} MiB  {:<14} {:>10.2f} {:>14.2f} {:>10.2f}\n", mib, path, rates.all_gather,
                 rates.reduce_scatter, rates.all_reduce);
  };
  if (world.rank() == 0)
    fmt::print("Bus bandwidth of {} ranks, GB/s\n{:<24} {:>10} {:>14} {:>10}\n", world.size(), "",
               "all-gather", "reduce-scatter", "all-reduce");
  std::unique_ptr<comm::NodeCollectives> node;
  if (world.sum(std::int64_t{one_node ? 1 : 0}) == world.size())
    node = std::make_unique<comm::NodeCollectives>(world);
  for (const std::int64_t mib : {1, 64}) {
    const std::int64_t n = mib * (1 << 18) / world.size();
    const std::int64_t rounded = n / 16 * 16;
    if (node) print(mib, "shared window", measure(world, *node, rounded));
    print(mib, "messages", measure(world, messages, rounded));
    print(mib, "plain MPI", measure_plain(world, rounded));
  }
  return 0;
}

}  // namespace

void declare_bench_collectives(CLI::App& bench, Run& chosen) {
  auto& command =
      add_command(bench, "collectives", "Compare collectives with plain MPI (under mpirun)",
                  {"mpirun -n 4 llamesh bench collectives",
                   "srun -N 2 --ntasks-per-node=8 llamesh bench collectives"});
  runs(command, chosen, bench_collectives);
}

}  // namespace llamesh::app
