#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "comm/mpi/communicator.hpp"
#include "core/clock.hpp"
#include "train/preflight/preflight.hpp"

namespace llamesh::train {

/// Inputs to the checks.
struct Subject {
  const comm::Communicator& world;
  const Setup& setup;
  const std::vector<std::string>& hosts;  // by rank
  bool first_on_host;

  const std::string& host_of(std::size_t rank) const { return hosts[rank]; }
};

/// Borrows both.
Subject subject_of(const comm::Communicator& world, const Setup& setup);

/// Collects every rank's problem (empty: none) by host.
void collect(Finding& finding, const Subject& at, const std::string& trouble);

// Each check is collective and returns the same finding on every rank.

/// Checks that all ranks run the same program. `build` is this rank's version text.
Finding check_build(const Subject& at, const std::string& build);
/// Names the MPI library and the `srun --mpi=` plugin that it needs.
Finding check_launch(const Subject& at);
/// Checks that the collectives on each axis give correct results.
Finding check_collectives(const Subject& at, comm::DeviceMesh& mesh);

/// Measures all ranks at once and compares them (slow_nodes.hpp). Measures again what looks slow.
/// The caller has set the number of threads.
std::vector<Finding> rate_findings(const Subject& at, comm::DeviceMesh& mesh);
/// Measures each rank's GEMM rate.
Finding check_compute(const Subject& at);
/// Measures each rank's memory bandwidth.
Finding check_memory(const Subject& at);
/// Measures the bandwidth between neighbors on each axis, in all groups at once.
Finding check_links(const Subject& at, comm::DeviceMesh& mesh);
/// Asks NVML about each rank's GPU.
Finding check_gpus(const Subject& at);

/// Checks that each host sees the folder and can write to its disk.
Finding check_folder(const Subject& at, const std::filesystem::path& folder);
/// Checks that the folder's disk has room for checkpoints. Throws an I/O failure if not.
Finding check_room(const Subject& at, const std::filesystem::path& folder);
/// Compares the bytes of memory checkpoints with each host's room for them, which
/// plan::check_memory() has checked.
Finding check_memory_checkpoints(const Subject& at);
/// Checks that the hosts' clocks agree.
Finding check_clocks(const Subject& at);

}  // namespace llamesh::train
