#include <gtest/gtest.h>

#include <cctype>
#include <functional>
#include <map>

#include "checkpoint/format/state_reader.hpp"
#include "checkpoint/memory/memory_folder.hpp"
#include "forged_snapshot.hpp"
#include "runs/whole_run.hpp"
#include "train/records/run_state.hpp"

// Runs that lose their processes and nodes, and resume from memory checkpoints.

namespace llamesh::test {
namespace {

using sharding::Strategy;

/// Changes the inputs.
using Change = std::function<void(train::Inputs&)>;

std::string memory_folder_of(const train::Inputs& in, const comm::Topology& topology, int node) {
  return checkpoint::memory_folder_prefix(in.run.folder) +
         checkpoint::memory_node_name(topology, node);
}

/// Returns the hashes of everything in a checkpoint.
std::map<std::string, std::vector<std::uint64_t>> hashes_in(const std::string& checkpoint) {
  std::map<std::string, std::vector<std::uint64_t>> hashes;
  for (const auto& entry : checkpoint::read_manifest(checkpoint).datasets)
    for (const auto& segment : entry.segments) hashes[entry.path].push_back(segment.hash);
  return hashes;
}

/// Returns inputs with memory checkpoints every 3 steps, on two nodes if there are ranks for them.
train::Inputs memory_inputs(const std::filesystem::path& folder) {
  auto in = inputs_in(folder);
  in.checkpoint.memory.every_steps = 3;
  in.mesh.ranks_per_node = world().size() % 2 == 0 ? world().size() / 2 : 0;
  return in;
}

struct MemoryCase {
  const char* name;
  Change change;
  int lost = -1;  ///< node; -1: none
};

class MemoryResume : public testing::TestWithParam<MemoryCase> {};

TEST_P(MemoryResume, IsExactAlsoAfterANodeIsLost) {
  const auto& [name, change, lost] = GetParam();
  const SharedFolder folder;
  auto in = memory_inputs(folder.path());
  change(in);
  auto unbroken = in;
  unbroken.run.folder += "-unbroken";
  unbroken.checkpoint.memory = {};
  run_to_the_end(unbroken);

  train_and_vanish(in, 8);
  const auto topology = comm::discover_topology(world(), in.mesh.ranks_per_node);
  const auto own =
      memory_folder_of(in, topology, topology.node_of[static_cast<std::size_t>(world().rank())]);
  world().barrier();
  EXPECT_TRUE(std::filesystem::exists(own));
  world().barrier();
  if (lost >= 0 && lost < topology.nodes && topology.nodes > 1 && world().rank() == 0)
    std::filesystem::remove_all(memory_folder_of(in, topology, lost));
  world().barrier();
  run_to_the_end(in);
  const auto state = train::read_run_state(in.run.folder);
  ASSERT_TRUE(state);
  EXPECT_EQ(state->first_step, 6) << "from memory, not from step 5 on disk";
  EXPECT_EQ(hashes_in(checkpoint_of(in, "12")), hashes_in(checkpoint_of(unbroken, "12")));
  EXPECT_FALSE(std::filesystem::exists(own)) << "the run is over";
}

const Change nothing = [](train::Inputs&) {};

Change with(Strategy strategy) {
  return [strategy](train::Inputs& in) { in.sharding.strategy = strategy; };
}

INSTANTIATE_TEST_SUITE_P(
    Runs, MemoryResume,
    testing::Values(
        MemoryCase{"full_shard", with(Strategy::full_shard)},
        MemoryCase{"full_shard, partner", with(Strategy::full_shard), 1},
        MemoryCase{"shard_grad_op, partner", with(Strategy::shard_grad_op), 0},
        MemoryCase{"no_shard", with(Strategy::no_shard), 0},
        MemoryCase{"hybrid_shard", with(Strategy::hybrid_shard), 1},
        MemoryCase{"hybrid_shard_zero2", with(Strategy::hybrid_shard_zero2), 0},
        MemoryCase{"bf16",
                   [](train::Inputs& in) {
                     in.precision.parameters = DType::bf16;
                     in.optimizer = {.lr = 3e-3, .moments = DType::bf16};
                   },
                   1},
        MemoryCase{"Muon",
                   [](train::Inputs& in) {
                     in.optimizer = {.name = optim::OptimizerName::muon, .lr = 3e-3};
                     in.optimizer.moments = DType::bf16;
                   },
                   1},
        MemoryCase{"LoRA",
                   [](train::Inputs& in) { in.model.lora = model::Lora{.rank = 3, .alpha = 7}; },
                   0},
        MemoryCase{"frozen",
                   [](train::Inputs& in) {
                     in.train.trained.freeze = {"model.layers.0.*", "model.embed_tokens.weight"};
                   },
                   1},
        MemoryCase{"stages",
                   [](train::Inputs& in) {
                     in.model.tie_word_embeddings = true;
                     if (world().size() % 2 == 0) in.mesh.pipeline = 2;
                   },
                   1},
        MemoryCase{"asynchronous saves", [](train::Inputs& in) { in.checkpoint.async = true; }, 1},
        MemoryCase{"offload",
                   [](train::Inputs& in) { in.sharding.offload = sharding::Offload::all; }, 0}),
    [](const auto& tested) {
      std::string name = tested.param.name;
      std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
      return name;
    });

// Snapshots whose hashes are right and whose contents are not.
TEST(MemoryResumeFromForgeries, ContinuesFromTheDisk) {
  using nlohmann::json;
  constexpr std::int64_t beyond = std::int64_t{1} << 62U;
  const SharedFolder folder;
  auto in = memory_inputs(folder.path());
  auto unbroken = in;
  unbroken.run.folder += "-unbroken";
  unbroken.checkpoint.memory = {};
  run_to_the_end(unbroken);
  const auto topology = comm::discover_topology(world(), in.mesh.ranks_per_node);
  const std::vector<std::function<void(checkpoint::SnapshotHeader&, json&)>> forgeries{
      [](auto& header, json&) { header.step = 7; },
      [](auto&, json& text) { text["step"] = 7; },
      [](auto&, json& text) { text.erase("tokens"); },
      [](auto&, json& text) { text.erase("config"); },
      [](auto& header, json& text) { text["step"] = header.step = beyond; },
  };
  for (const auto& change : forgeries) {
    in.run.folder += "-next";
    train_and_vanish(in, 8);
    world().barrier();
    for (int node = 0; world().rank() == 0 && node < topology.nodes; ++node)
      for (const auto& file : checkpoint::files_in(memory_folder_of(in, topology, node))) {
        if (!checkpoint::MemorySnapshot::read_header(file)) continue;  // the mark of the job
        forge(file, [&](checkpoint::SnapshotHeader& header, std::string& text) {
          if (header.step != 6) return;
          auto parsed = json::parse(text);
          change(header, parsed);
          text = parsed.dump();
        });
      }
    world().barrier();
    run_to_the_end(in);
    EXPECT_EQ(train::read_run_state(in.run.folder)->first_step, 5);
    EXPECT_EQ(hashes_in(checkpoint_of(in, "12")), hashes_in(checkpoint_of(unbroken, "12")));
  }
}

// Without replicas on another node and without replicas on other nodes, the disk is the only place.
TEST(MemoryResumeWithoutCopies, ContinuesFromTheDisk) {
  const SharedFolder folder;
  auto in = memory_inputs(folder.path());
  in.sharding.strategy = Strategy::full_shard;
  in.checkpoint.memory.partner = checkpoint::RemoteReplicas::off;
  train_and_vanish(in, 8);
  const auto topology = comm::discover_topology(world(), in.mesh.ranks_per_node);
  world().barrier();
  if (world().rank() == 0) std::filesystem::remove_all(memory_folder_of(in, topology, 0));
  world().barrier();
  run_to_the_end(in);
  EXPECT_EQ(train::read_run_state(in.run.folder)->first_step, 5);
}

// Processes die twice, and the user goes back to an older checkpoint in between.
TEST(MemoryResumeAfterTheUserWentBack, ContinuesFromTheDisk) {
  const SharedFolder folder;
  auto in = memory_inputs(folder.path());
  train_and_vanish(in, 7);
  train_and_vanish(in, 11);  // from step 6; saves step 10, and step 9 in memory
  EXPECT_EQ(train::read_run_state(in.run.folder)->first_step, 6);
  world().barrier();
  if (world().rank() == 0) std::filesystem::remove_all(checkpoint_of(in, "10"));
  world().barrier();
  train_and_vanish(in, 7);  // step 9 was made before step 10, and after step 5
  EXPECT_EQ(train::read_run_state(in.run.folder)->first_step, 9);
  world().barrier();
  if (world().rank() == 0) std::filesystem::remove_all(checkpoint_of(in, "05"));
  world().barrier();
  train_and_vanish(in, 4);
  EXPECT_EQ(train::read_run_state(in.run.folder)->first_step, 0) << "nothing on disk";
  run_to_the_end(in);
  EXPECT_EQ(train::read_run_state(in.run.folder)->first_step, 3);
}

// A save on disk does not finish. It was due, so the next launch makes it before its first step.
TEST(MemoryResumeAfterAnUnfinishedSave, SavesFirst) {
  const SharedFolder folder;
  auto in = memory_inputs(folder.path());
  in.checkpoint.memory.every_steps = 5;
  in.checkpoint.keep = 9;
  train_and_vanish(in, 6);
  world().barrier();
  if (world().rank() == 0) std::filesystem::remove_all(checkpoint_of(in, "05"));
  world().barrier();
  run_to_the_end(in);
  EXPECT_EQ(train::read_run_state(in.run.folder)->first_step, 5) << "from memory";
  EXPECT_TRUE(std::filesystem::exists(checkpoint_of(in, "05")));
}

// Memory checkpoints of a mesh with fewer replicas.
TEST(MemoryResumeOnSurvivors, AReplicaIsEnough) {
  const int half = world().size() / 2;
  if (half == 0 || world().size() % 2 != 0) return;
  const SharedFolder folder;
  auto in = memory_inputs(folder.path());
  in.sharding.strategy = Strategy::hybrid_shard;
  train_and_vanish(in, 8);
  const auto topology = comm::discover_topology(world(), in.mesh.ranks_per_node);
  world().barrier();
  if (world().rank() == 0) {  // node 1 is the first one now
    std::filesystem::remove_all(memory_folder_of(in, topology, 0));
    std::filesystem::rename(memory_folder_of(in, topology, 1), memory_folder_of(in, topology, 0));
  }
  const auto survivors = world().split(world().rank() < half ? 0 : 1, world().rank());
  if (world().rank() < half) {
    const auto setup = plan::make_planned_setup(survivors, in);
    auto watchdog = train::watch_over(survivors);
    EXPECT_EQ(train::run(survivors, setup, "run: {}\n", {}, watchdog).code, ExitCode::done);
  }
  world().barrier();
  EXPECT_EQ(train::read_run_state(in.run.folder)->first_step, 6);
}

}  // namespace
}  // namespace llamesh::test
