#include "comm/mpi/session.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/process.hpp"
#include "device/device.hpp"
#include "device/host_memory.hpp"

namespace llamesh::comm {
namespace {

bool may_share() {
  const char* value = std::getenv("LLAMESH_SHARE_GPU");
  return value != nullptr && std::string_view(value) == "1";
}

/// Warns if a machine's GPUs stay unused: a job on CPUs looks like a slow one on GPUs.
void warn_of_unused_gpus() {
  const auto gpus = device::installed_gpus();
  if (gpus > 0)
    spdlog::warn(
        "the CPU is used, although {} has {} NVIDIA GPU{}: {}; give --device cpu if this is "
        "intended",
        this_process().host, gpus, gpus == 1 ? "" : "s", device::why_no_cuda());
}

void refuse_failing_driver(const Communicator& world) {
  agree(world, [&] {
    const auto failure = device::cuda_failure();
    validate(failure.empty(),
             "the NVIDIA driver on {} cannot list its GPUs: {}; see nvidia-smi there, take another "
             "node, or give --device cpu",
             this_process().host, failure);
  });
}

/// Returns true if all ranks see a GPU; refuses a job in which only some do.
bool all_see_a_gpu(const Communicator& world, bool required) {
  refuse_failing_driver(world);
  const auto seen = world.all_gather(std::int64_t{device::cuda_devices() > 0});
  const auto without = std::ranges::find(seen, 0);
  if (without == seen.end()) return true;
  const bool none = std::ranges::count(seen, 0) == std::ssize(seen);
  const auto rank = without - seen.begin();
  agree(world, [&] {
    validate((none && !required) || world.rank() != rank,
             "no GPU: {}; give each rank one (srun --gpus-per-task=1), or --device cpu",
             device::why_no_cuda());
  });
  if (world.rank() == 0) warn_of_unused_gpus();
  return false;
}

/// Returns each GPU's NUMA node. `gpus` has their identities, with a space after each.
std::vector<int> nodes_of(const std::string& gpus) {
  std::vector<int> nodes;
  std::istringstream words(gpus);
  for (std::string gpu; words >> gpu;) nodes.push_back(device::numa_node_of(gpu));
  return nodes;
}

/// Returns this rank's GPU among those that it sees, as do others on its machine.
int gpu_on(const Communicator& machine, const std::string& seen) {
  const auto seen_by_all = machine.all_gather(seen);
  const auto nodes =
      machine.all_gather(std::int64_t{device::node_of_processors(device::own_processors())});
  std::vector<int> nodes_of_ranks;  // those that see the same
  std::size_t place = 0;
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    if (seen_by_all[rank] != seen) continue;
    if (static_cast<int>(rank) == machine.rank()) place = nodes_of_ranks.size();
    nodes_of_ranks.push_back(static_cast<int>(nodes[rank]));
  }
  return device::gpus_of_ranks(nodes_of_ranks, nodes_of(seen)).at(place);
}

void refuse_sharing(const Communicator& world, const Communicator& machine) {
  const auto all = machine.all_gather(device::identity());
  const auto mine = static_cast<std::size_t>(machine.rank());
  const auto first = std::ranges::find(all, all[mine]) - all.begin();
  const auto mig = device::mig_profile();
  agree(world, [&] {
    const bool alone = first == machine.rank() || may_share();
    validate(alone || mig.empty(),
             "this rank and rank {} of {} are on parts of one GPU ({}, MIG {}), which NCCL cannot "
             "connect: take whole GPUs (an administrator's nvidia-smi -mig 0), start one rank on "
             "one part, or give --device cpu",
             first, this_process().host, all[mine], mig);
    validate(alone,
             "this rank and rank {} of {} are on one GPU ({}): start one rank a GPU, e.g. "
             "--ntasks-per-node = the GPUs of a node, or give --device cpu",
             first, this_process().host, all[mine]);
  });
}

}  // namespace

void choose_device(const Communicator& world, DeviceChoice choice) {
  if (choice == DeviceChoice::cpu) return;
  if (!all_see_a_gpu(world, choice == DeviceChoice::cuda)) return;
  const auto machine = world.split_shared_memory();
  std::string seen;
  agree(world, [&] { seen = device::visible_identities(); });
  const int gpu = gpu_on(machine, seen);
  agree(world, [&] { device::use_cuda(gpu); });
  refuse_sharing(world, machine);
}

}  // namespace llamesh::comm
