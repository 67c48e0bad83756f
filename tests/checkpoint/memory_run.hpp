#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "checkpoint/memory/memory_checkpoints.hpp"
#include "checkpoint/memory/memory_folder.hpp"
#include "core/file.hpp"
#include "fixture.hpp"
#include "support.hpp"

namespace llamesh::test {

/// A run folder, with memory checkpoints on two nodes if the world can be divided.
class MemoryRun {
 public:
  explicit MemoryRun(checkpoint::RemoteReplicas partner = checkpoint::RemoteReplicas::automatic)
      : topology(
            comm::discover_topology(world(), world().size() % 2 == 0 ? world().size() / 2 : 0)),
        options{.every_steps = 1, .partner = partner} {
    comm::agree(world(), [&] {
      if (world().rank() == 0) make_folder(folder.path() / "checkpoints");
    });
  }
  ~MemoryRun() {
    world().barrier();
    for (int node = 0; world().rank() == 0 && node < topology.nodes; ++node) lose(node);
  }

  std::filesystem::path node_folder(int node) const {
    return checkpoint::memory_folder_prefix(folder.path()) +
           checkpoint::memory_node_name(topology, node);
  }
  void lose(int node) const { std::filesystem::remove_all(node_folder(node)); }
  /// Runs `work` on rank 0 while the others wait.
  static void alone(const std::function<void()>& work) {
    world().barrier();
    comm::agree(world(), [&] {
      if (world().rank() == 0) work();
    });
  }
  /// Returns the files of a step's snapshots on all nodes or one.
  std::vector<std::filesystem::path> snapshots_of(std::int64_t step, int only_node = -1) const {
    std::vector<std::filesystem::path> found;
    for (int node = 0; node < topology.nodes; ++node) {
      if (only_node >= 0 && node != only_node) continue;
      std::error_code error;
      for (const auto& file : std::filesystem::directory_iterator(node_folder(node), error))
        if (const auto header = checkpoint::MemorySnapshot::read_header(file.path());
            header && header->step == step)
          found.push_back(file.path());
    }
    return found;
  }

  checkpoint::MemoryCheckpoints start() const {
    return {folder.path(), options, topology, world()};
  }
  /// Saves steps 1 to `last`, each with the numbers of that version.
  void save(const Job& job, int last, std::int64_t disk_step = -1) const {
    auto memory = start();
    memory.reserve(job.state());
    for (int step = 1; step <= last; ++step) {
      job.fill(step);
      memory.save(job.state(), progress(step), disk_step);
    }
    memory.wait();
    job.fill(0);
  }
  /// Resumes in a new launch and checks the numbers. Returns the step, or -1 if nothing was used.
  std::int64_t resume(const Job& job, std::int64_t disk_step = -1) const {
    auto memory = start();
    const auto got = memory.resume(job.state(), disk_step);
    if (!got) return -1;
    EXPECT_EQ(*got, progress(got->step));
    EXPECT_EQ(job.wrong(static_cast<int>(got->step)), 0);
    return got->step;
  }

  Folder folder;
  comm::Topology topology;
  checkpoint::MemoryCheckpointOptions options;
};

}  // namespace llamesh::test
