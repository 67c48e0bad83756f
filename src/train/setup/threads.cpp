#include "train/setup/setup.hpp"

#include <fmt/format.h>
#include <omp.h>
#include <sched.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <latch>
#include <thread>
#include <vector>

#include "core/philox.hpp"
#include "core/process.hpp"

namespace llamesh::train {
namespace {

struct Cores {
  int count;
  std::int64_t fingerprint;  ///< equal for equal core sets
};

Cores cores_of_this_process() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return {1, 0};
  const std::string_view bytes(reinterpret_cast<const char*>(&set), sizeof(set));
  return {std::max(1, CPU_COUNT(&set)), static_cast<std::int64_t>(name_hash(bytes))};
}

/// Throws if this many more threads cannot be started: OpenMP would end the process with its own
/// message and exit code 1.
void try_threads(int more) {
  std::latch all_run(1);
  std::vector<std::jthread> threads;
  try {
    for (int i = 0; i < more; ++i) threads.emplace_back([&] { all_run.wait(); });
  } catch (...) {
    all_run.count_down();
    throw;
  }
  all_run.count_down();
}

}  // namespace

int set_threads(int requested, const comm::Communicator& world) {
  const auto machine = world.split_shared_memory();
  const Cores mine = cores_of_this_process();
  const auto all = machine.all_gather(mine.fingerprint);
  const auto sharers = static_cast<int>(std::count(all.begin(), all.end(), mine.fingerprint));
  const int threads = requested > 0 ? requested : std::max(1, mine.count / sharers);
  if (requested > mine.count && world.rank() == 0)
    spdlog::warn(
        "train.threads is {}, but rank 0 may use {}: threads that share a core are slow; give each "
        "rank its cores (srun --cpus-per-task, mpirun --map-by slot:PE=N) or leave train.threads "
        "out",
        requested, mine.count == 1 ? "1 core" : fmt::format("{} cores", mine.count));
  comm::agree(world, [&] { try_threads(threads - 1); });
  omp_set_num_threads(threads);
#pragma omp parallel
  if (omp_get_thread_num() != 0) block_stop_signals();
  return threads;
}

}  // namespace llamesh::train
