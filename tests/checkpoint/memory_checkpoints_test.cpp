#include "checkpoint/memory/memory_checkpoints.hpp"

#include <fcntl.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <fstream>

#include "checkpoint/format/format.hpp"
#include "checkpoint/memory/memory_folder.hpp"
#include "core/file.hpp"
#include "core/process.hpp"
#include "core/slurm/own_job.hpp"
#include "memory_run.hpp"
#include "temporary_folder.hpp"

namespace llamesh::test {
namespace {

namespace fs = std::filesystem;
using checkpoint::MemoryCheckpoints;
using checkpoint::MemorySnapshot;
using checkpoint::RemoteReplicas;

void flip_bit(const fs::path& file, std::int64_t at) {
  auto bytes = Descriptor::to_write(file, O_RDWR);
  char byte = 0;
  bytes.read(at, &byte, 1);
  byte = static_cast<char>(byte ^ 4);
  bytes.write(at, &byte, 1);
}

TEST(MemoryCheckpoints, FoldersOfNodesThatTheHostNoLongerHasAreRemoved) {
  const MemoryRun run;
  const auto stale = run.node_folder(0).replace_extension(".9");
  MemoryRun::alone([&] { make_folder(stale); });
  run.save(Job(1), 1);
  world().barrier();
  EXPECT_FALSE(fs::exists(stale));
  EXPECT_FALSE(run.snapshots_of(1).empty());
}

TEST(MemoryCheckpoints, AnIdentityThatCannotBeReadIsReplaced) {
  const MemoryRun run;
  const Job job(1);
  run.save(job, 1);
  const auto identity = run.folder.path() / "checkpoints" / checkpoint::run_identity_name;
  MemoryRun::alone([&] { std::ofstream(identity) << "torn"; });
  EXPECT_EQ(run.resume(job), -1);
  run.save(job, 2);
  EXPECT_EQ(run.resume(job), 2);
}

TEST(MemoryCheckpoints, ANewStartContinuesFromTheNewestOfTwoSteps) {
  for (const int replicate : {1, world().size()}) {
    const MemoryRun run;
    const Job job(replicate);
    EXPECT_EQ(run.resume(job), -1) << "nothing yet";
    run.save(job, 3);
    EXPECT_EQ(run.resume(job), 3);
    EXPECT_EQ(run.resume(job), 3) << "it stays";
    world().barrier();
    EXPECT_TRUE(run.snapshots_of(1).empty());
    EXPECT_FALSE(run.snapshots_of(2).empty());
  }
}

TEST(MemoryCheckpoints, ATornStepGivesWayToTheOneBefore) {
  const MemoryRun run(RemoteReplicas::off);
  const Job job(1);
  run.save(job, 3);
  MemoryRun::alone([&] {
    const auto torn = run.snapshots_of(3).back();
    MemorySnapshot(torn, MemorySnapshot::read_header(torn)->key.bytes, 0).invalidate();
  });
  EXPECT_EQ(run.resume(job), 2);
}

TEST(MemoryCheckpoints, WhatResumedFromAnOlderStepReplacesTheNewerSnapshots) {
  const MemoryRun run(RemoteReplicas::off);
  const Job job(1);
  run.save(job, 3);
  MemoryRun::alone([&] { flip_bit(run.snapshots_of(3).back(), 5000); });
  {
    auto memory = run.start();
    ASSERT_EQ(memory.resume(job.state(), -1)->step, 2);
    memory.reserve(job.state());
    world().barrier();
    EXPECT_TRUE(run.snapshots_of(3).empty()) << "of the first launch";
    EXPECT_FALSE(run.snapshots_of(2).empty()) << "still the newest";
    world().barrier();
    job.fill(3);
    memory.save(job.state(), progress(3), -1);
  }
  EXPECT_EQ(run.resume(job), 3);
}

TEST(MemoryCheckpoints, ADamagedSnapshotIsFoundWhereverTheBitIs) {
  const Job job(1);
  const auto bytes = checkpoint::snapshot_bytes(key_of(job.state()).bytes, 0);
  const auto smallest = world().min(bytes);
  for (const std::int64_t at : {std::int64_t{20}, std::int64_t{4096}, smallest / 2, smallest - 9,
                                smallest + 5}) {  // header, shards, hashes, text
    for (const auto partner : {RemoteReplicas::off, RemoteReplicas::automatic}) {
      const MemoryRun run(partner);
      run.save(job, 3);
      MemoryRun::alone([&] {
        for (const auto& snapshot : run.snapshots_of(3, 0)) flip_bit(snapshot, at);
      });
      const bool has_copies = partner == RemoteReplicas::automatic && run.topology.nodes > 1;
      EXPECT_EQ(run.resume(job), has_copies ? 3 : 2) << "byte " << at;
    }
  }
}

TEST(MemoryCheckpoints, ADamagedSnapshotIsReplacedByItsCopyOnAnotherNode) {
  if (world().size() < 2) return;
  for (const int replicate : {1, 2}) {
    const MemoryRun run;
    const Job job(replicate);
    run.save(job, 3);
    MemoryRun::alone([&] { flip_bit(run.snapshots_of(3, 0).front(), 5000); });
    EXPECT_EQ(run.resume(job), 3);
    MemoryRun::alone([&] {
      for (const auto& snapshot : run.snapshots_of(3)) flip_bit(snapshot, 5000);
    });
    EXPECT_EQ(run.resume(job), 2);
    MemoryRun::alone([&] {
      for (const auto& snapshot : run.snapshots_of(2)) flip_bit(snapshot, 5000);
    });
    EXPECT_EQ(run.resume(job), -1);
  }
}

TEST(MemoryCheckpoints, ALostNodeReceivesFromAllReplicas) {
  if (world().size() < 2) return;
  for (const int lost : {0, 1}) {
    for (const int replicate : {1, 2, world().size()}) {
      const MemoryRun run;
      const Job job(replicate);
      run.save(job, 3);
      MemoryRun::alone([&] { run.lose(lost); });
      auto memory = run.start();
      ASSERT_EQ(memory.resume(job.state(), -1)->step, 3);
      EXPECT_EQ(job.wrong(3), 0);
      memory.reserve(job.state());
      job.fill(4);
      memory.save(job.state(), progress(4), -1);
      memory.wait();
      EXPECT_EQ(run.resume(job), 4);
      MemoryRun::alone([&] { run.lose(1 - lost); });
      EXPECT_EQ(run.resume(job), 4) << "the new node has copies again";
    }
    const MemoryRun run(RemoteReplicas::off);
    const Job job(1);
    run.save(job, 3);
    MemoryRun::alone([&] { run.lose(lost); });
    EXPECT_EQ(run.resume(job), -1);
  }
}

TEST(MemoryCheckpoints, SurvivorsOfAShrunkenMeshHaveAllShards) {
  const int half = world().size() / 2;
  if (half == 0 || world().size() % 2 != 0) return;
  const MemoryRun run;
  {
    const Job job(2);
    run.save(job, 3);
  }
  // Node 1 is the only node now, so it has the first one's name.
  MemoryRun::alone([&] {
    run.lose(0);
    fs::rename(run.node_folder(1), run.node_folder(0));
  });
  const auto survivors = world().split(world().rank() < half ? 0 : 1, world().rank());
  if (world().rank() < half) {
    const Job job(comm::ParallelDims({{"replicate", 1}, {"shard", half}}),
                  sharding::whole_and_sharded);
    MemoryCheckpoints memory(run.folder.path(), run.options, comm::discover_topology(survivors, 0),
                             survivors);
    const auto got = memory.resume(job.state(), -1);
    ASSERT_TRUE(got);
    EXPECT_EQ(got->step, 3);
    std::int64_t wrong = 0;
    job.for_each(3, [&](float& number, float value) { wrong += number != value ? 1 : 0; });
    EXPECT_EQ(wrong, 0);
  }
  world().barrier();
}

TEST(MemoryCheckpoints, AnotherMeshFindsNothing) {
  if (world().size() < 2) return;
  const MemoryRun run;
  const Job job(1);
  run.save(job, 3);
  EXPECT_EQ(run.resume(Job(world().size())), -1);
  EXPECT_EQ(run.resume(job), 3);
}

TEST(MemoryCheckpoints, NothingOlderThanTheDiskIsUsed) {
  const MemoryRun run;
  const Job job(1);
  run.save(job, 3, /*disk_step=*/1);
  EXPECT_EQ(run.resume(job, 3), -1);
  EXPECT_EQ(run.resume(job, 7), -1);
  EXPECT_EQ(run.resume(job, 2), 3);
  EXPECT_EQ(run.resume(job, 1), 3);
  EXPECT_EQ(run.resume(job, 0), -1) << "step 1 was on disk: the user has gone back";
  EXPECT_EQ(run.resume(job, -1), -1);
}

TEST(MemoryCheckpoints, AFolderThatWasRemovedAndMadeAgainIsAnotherRun) {
  const MemoryRun run;
  const Job job(1);
  run.save(job, 3);
  MemoryRun::alone([&] { fs::remove(run.folder.path() / "checkpoints" / ".run_id"); });
  EXPECT_EQ(run.resume(job), -1);
  auto memory = run.start();
  memory.reserve(job.state());
  world().barrier();
  EXPECT_TRUE(run.snapshots_of(3).empty());
}

TEST(MemoryCheckpoints, WhoeverResumesMayRefuseBeforeTheStateIsTouched) {
  const MemoryRun run;
  const Job job(1);
  run.save(job, 2);
  job.fill(9);
  auto memory = run.start();
  const auto refuse = [](const checkpoint::TrainState& saved) {
    fail(ExitCode::bad_input, "not step {}", saved.step);
  };
  EXPECT_EQ(code_of([&] { memory.resume(job.state(), -1, refuse); }), ExitCode::bad_input);
  EXPECT_EQ(job.wrong(9), 0);
}

TEST(MemoryCheckpoints, ATextMayGrow) {
  const MemoryRun run;
  const Job job(1);
  auto large = progress(2);
  large.config = std::string(300'000, 'x');
  {
    auto memory = run.start();
    memory.reserve(job.state());
    job.fill(1);
    memory.save(job.state(), progress(1), -1);
    job.fill(2);
    memory.save(job.state(), large, -1);
    memory.wait();
  }
  MemoryRun::alone([&] {
    if (run.topology.nodes > 1) run.lose(1);
  });
  const auto got = run.start().resume(job.state(), -1);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->config, large.config);
  EXPECT_EQ(job.wrong(2), 0);
}

TEST(MemoryCheckpoints, FilesAreForTheUserAloneAndGoInTheEnd) {
  const MemoryRun run;
  const Job job(1);
  auto memory = run.start();
  memory.reserve(job.state());
  memory.save(job.state(), progress(1), -1);
  memory.wait();
  const auto mine = run.node_folder(run.topology.node_of[static_cast<std::size_t>(world().rank())]);
  EXPECT_EQ(fs::status(mine).permissions(), static_cast<fs::perms>(0700));
  for (const auto& file : fs::directory_iterator(mine))
    EXPECT_EQ(file.status().permissions(), static_cast<fs::perms>(0600)) << file.path();
  world().barrier();
  memory.remove();
  world().barrier();
  EXPECT_FALSE(fs::exists(mine));
}

TEST(MemoryCheckpoints, OnlyTheJobThatMadeThemLastRemovesThem) {
  const MemoryRun run;
  const auto job_of_rank_0 = world().broadcast(job_name());
  MemoryRun::alone([&] {
    make_folder(run.node_folder(0));
    const std::ofstream job(run.node_folder(0) / "job-of-an-earlier-start");
    fs::permissions(run.node_folder(0), fs::perms::owner_all);
  });
  run.save(Job(1), 1);
  const auto removes = [&](const std::string& job) {
    output_of({"sh", "-c", checkpoint::removal_command(run.folder.path()), "sh", job});
    return !fs::exists(run.node_folder(0));
  };
  MemoryRun::alone([&] {
    EXPECT_FALSE(removes("of-an-earlier-start"));
    EXPECT_FALSE(removes(job_of_rank_0 + "1"));
    EXPECT_FALSE(run.snapshots_of(1, 0).empty());
    EXPECT_TRUE(removes(job_of_rank_0));
  });
}

TEST(MemoryCheckpoints, NothingIsWrittenThroughALink) {
  const MemoryRun run;
  const Job job(1);
  MemoryRun::alone([&] { fs::create_directory_symlink(run.folder.path(), run.node_folder(0)); });
  const auto line = left_by([&] { run.start().reserve(job.state()); }, ExitCode::bad_input);
  if (world().rank() != 0) return;
  EXPECT_NE(line.find("only this user"), std::string::npos) << line;
}

TEST(MemoryCheckpoints, TooLittleMemoryIsOneLine) {
  const MemoryRun run;
  const auto mine = run.node_folder(run.topology.node_of[static_cast<std::size_t>(world().rank())]);
  checkpoint::make_memory_folder(mine);
  struct statvfs room {};
  ASSERT_EQ(statvfs(mine.c_str(), &room), 0);
  const auto bytes = static_cast<std::int64_t>(room.f_blocks * room.f_frsize);
  if (bytes == 0) GTEST_SKIP() << "/dev/shm has no limit here";
  const auto snapshot = mine / fmt::format("snapshot-{}", world().rank());
  const auto line = error_of([&] { MemorySnapshot(snapshot, 2 * bytes, 0); });
  EXPECT_NE(line.find("no room for a memory checkpoint of "), std::string::npos) << line;
}

TEST(MemorySnapshots, HoldShardsOfAnyTypeAndSize) {
  const TemporaryFolder folder;
  const Job job(1);
  auto state = job.state();
  for (auto& shard : state.groups[1].shards)  // sizes that are not multiples of a line
    shard = Tensor(shard.data(), DType::bf16, {std::max<std::int64_t>(shard.numel() - 3, 0)});
  state.groups[2].shards[0] = {};
  job.fill(4);
  MemorySnapshot snapshot(folder.path("snapshot"), key_of(state).bytes, 1000);
  EXPECT_FALSE(snapshot.header());
  snapshot.fill(state, to_text(progress(3)),
                {.run = 1, .launch = 2, .step = 3, .key = key_of(state)});
  EXPECT_TRUE(snapshot.is_intact());
  EXPECT_EQ(snapshot.progress(), progress(3));
  EXPECT_EQ(snapshot.step(), 3);
  std::vector<std::string> before;
  const auto bytes_of = [&] {
    std::vector<std::string> all;
    for (const auto& group : state.groups)
      for (const auto& shard : group.shards)
        all.emplace_back(static_cast<const char*>(shard.data()),
                         shard ? static_cast<std::size_t>(shard.bytes()) : 0);
    return all;
  };
  const auto expected = bytes_of();
  job.fill(5);
  EXPECT_NE(bytes_of(), expected);
  snapshot.load(state);
  EXPECT_EQ(bytes_of(), expected);
  fs::resize_file(folder.path("snapshot"), 4096 + key_of(state).bytes);
  EXPECT_FALSE(MemorySnapshot::read_header(folder.path("snapshot"))) << "cut off";
}

}  // namespace
}  // namespace llamesh::test
