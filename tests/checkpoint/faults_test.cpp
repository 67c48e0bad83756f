#include <fcntl.h>
#include <sys/file.h>
#include <sys/mount.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "checkpoint/store/lease.hpp"
#include "core/file.hpp"
#include "core/hash.hpp"
#include "fixture.hpp"
#include "hostile_files.hpp"
#include "support.hpp"

namespace llamesh::test {
namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointOptions;
using checkpoint::Store;

/// Runs on rank 0 once all ranks have arrived, so that none still reads what the work changes.
void on_rank_0(const std::function<void()>& work) {
  world().barrier();
  comm::agree(world(), [&] {
    if (world().rank() == 0) work();
  });
}

void flip(const fs::path& file, std::int64_t at) {
  auto bytes = Descriptor::to_write(file, O_RDWR);
  char byte = 0;
  bytes.read(at, &byte, 1);
  byte = static_cast<char>(byte ^ 4);
  bytes.write(at, &byte, 1);
}

/// A folder with checkpoints for steps 1 and 2, with numbers from version 1 and 2.
struct Saved {
  Saved() : store(std::in_place, folder.path(), CheckpointOptions{}, world()) {
    for (int step = 1; step <= 2; ++step) {
      run.fill(step);
      store->save(run.state(), progress(step));
    }
    run.fill(0);
  }
  fs::path newest() const { return folder.path() / "step_00000002"; }
  void expect_fall_back() {
    const auto got = store->resume(run.state(), "auto");
    ASSERT_TRUE(got);
    EXPECT_EQ(got->step, 1);
    EXPECT_EQ(run.wrong(1), 0);
  }
  Folder folder;
  Job run{1};
  std::optional<Store> store;
};

TEST(Faults, AFlippedBitAnywhereIsFound) {
  Saved saved;
  const auto manifest = checkpoint::read_manifest(saved.newest());
  std::vector<std::pair<fs::path, std::int64_t>> places;
  const auto h5 = saved.newest() / "state.h5";
  for (const std::int64_t at : {0, 9, 40, 200, 900, 2048}) places.emplace_back(h5, at);
  for (std::size_t i = 0; i < manifest.datasets.size(); i += sanitized ? 5 : 1) {
    const auto& d = manifest.datasets[i];
    places.emplace_back(h5, d.offset);
    places.emplace_back(h5, d.offset + 4 * d.numel() - 1);
  }
  const auto json = saved.newest() / "manifest.json";
  for (const std::int64_t at : {0, 3, 15, 30, 32, 60, 1000}) places.emplace_back(json, at);
  for (const auto& [file, at] : places) {
    SCOPED_TRACE(fmt::format("byte {} of {}", at, file.filename().string()));
    on_rank_0([&] { flip(file, at); });
    EXPECT_FALSE(checkpoint::find_damage(saved.newest()).empty());
    saved.expect_fall_back();
    on_rank_0([&] { flip(file, at); });
  }
  EXPECT_TRUE(checkpoint::find_damage(saved.newest()).empty());
}

TEST(Faults, TruncatedOrMissingFilesFallBack) {
  for (const char* name : {"state.h5", "manifest.json"}) {
    Saved saved;
    on_rank_0(
        [&] { fs::resize_file(saved.newest() / name, fs::file_size(saved.newest() / name) - 1); });
    saved.expect_fall_back();
    on_rank_0([&] { fs::remove(saved.newest() / name); });
    saved.expect_fall_back();
  }
}

TEST(Faults, HostileFilesFallBackAtOnce) {
  for (const char* name : {"state.h5", "manifest.json"}) {
    Saved saved;
    const auto path = saved.newest() / name;
    for (const auto& kind : hostile_kinds()) {
      SCOPED_TRACE(kind + " as " + name);
      const TimeLimit limit(30);
      on_rank_0([&] { put_hostile(kind, path); });
      EXPECT_FALSE(checkpoint::find_damage(saved.newest()).empty());
      saved.expect_fall_back();
    }
    on_rank_0([&] { put_sparse(path, std::uintmax_t{1} << 40); });
    EXPECT_FALSE(checkpoint::find_damage(saved.newest()).empty());
    saved.expect_fall_back();
  }
}

TEST(Faults, ACheckpointUnderTheNameOfAnotherStepFallsBack) {
  Saved saved;
  on_rank_0([&] { fs::rename(saved.newest(), saved.folder.path() / "step_00000007"); });
  saved.expect_fall_back();
  on_rank_0(
      [&] { fs::rename(saved.folder.path() / "step_00000007", saved.folder.path() / "best"); });
  EXPECT_EQ(saved.store->resume(saved.run.state(), saved.folder.path() / "best")->step, 2);
}

TEST(Faults, NoGoodCheckpointIsAnErrorNotANewRun) {
  Saved saved;
  on_rank_0([&] {
    fs::remove(saved.folder.path() / "step_00000001/manifest.json");
    fs::remove(saved.newest() / "state.h5");
  });
  EXPECT_EQ(code_of([&] { saved.store->resume(saved.run.state(), "auto"); }), ExitCode::bad_input);
  EXPECT_EQ(code_of([&] { saved.store->resume(saved.run.state(), "/nowhere"); }),
            ExitCode::bad_input);
}

TEST(Faults, AfterAFallBackTheDamagedOneIsOutOfTheWay) {
  Saved saved;
  on_rank_0([&] { flip(saved.newest() / "state.h5", 0); });
  saved.expect_fall_back();
  saved.store->save(saved.run.state(), progress(1));
  world().barrier();
  EXPECT_EQ(checkpoint::committed_checkpoints(saved.folder.path()).size(), 1U);
  EXPECT_EQ(saved.store->resume(saved.run.state(), "auto")->step, 1);
}

TEST(Faults, AnotherModelIsRefused) {
  Saved saved;
  const Job other(1, sharding::Wrap::layer, small_config(32));
  EXPECT_EQ(code_of([&] { saved.store->resume(other.state(), "auto"); }), ExitCode::bad_input);
  Job less(1);
  less.groups.pop_back();
  EXPECT_EQ(code_of([&] { saved.store->resume(less.state(), "auto"); }), ExitCode::bad_input);
  EXPECT_EQ(
      checkpoint::read_state(saved.newest(), less.state(), world(), checkpoint::OtherGroups::ignore)
          .step,
      2);
}

/// Returns the manifest with its first `from` replaced, sealed again.
std::string changed(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const auto rest = text.substr(text.find('\n') + 1);
  return fmt::format("{{\"checksum\": \"{:016x}\",\n", hash_of(rest.data(), rest.size())) + rest;
}

TEST(Faults, ANewerFormatIsRefused) {
  const Saved saved;
  const auto text = checkpoint::to_text(checkpoint::read_manifest(saved.newest()));
  EXPECT_EQ(
      code_of([&] {
        checkpoint::parse_manifest(changed(text, "\"format_version\":1", "\"format_version\":9"));
      }),
      ExitCode::bad_input);
}

TEST(Faults, NumbersThatAreNoneAreDamage) {
  const Saved saved;
  const auto manifest = checkpoint::read_manifest(saved.newest());
  const auto text = checkpoint::to_text(manifest);
  EXPECT_EQ(code_of([&] { checkpoint::parse_manifest(changed(text, "", "")); }), ExitCode::done);
  const auto bytes = std::to_string(manifest.file_bytes);
  const std::string huge = "18446744073709551615";
  std::vector<std::array<std::string, 3>> changes;  // key, good, bad
  for (const auto& bad : {"1.5", "true", "null", "\"1\"", "-1", "[]", huge.c_str()}) {
    changes.push_back({"format_version", "1", bad});
    changes.push_back({"step", "2", bad});
    changes.push_back({"tokens", "20", bad});
    changes.push_back({"file_bytes", bytes, bad});
  }
  changes.push_back({"format_version", "1", "0"});
  changes.push_back({"step", "2", "1000000000000000000"});
  for (const auto& bad : {"1.5", "-1", "true"}) changes.push_back({"seed", "7", bad});
  for (const auto& bad : {"[97.0,24]", "[97,-24]", "[97,24,1,1,1]", "[]", "[0]", "[2147483648,1]"})
    changes.push_back({"shape", "[97,24]", bad});
  for (const auto& [key, good, bad] : changes) {
    const auto damaged =
        changed(text, fmt::format("\"{}\":{}", key, good), fmt::format("\"{}\":{}", key, bad));
    EXPECT_EQ(code_of([&, &damaged = damaged] { checkpoint::parse_manifest(damaged); }),
              ExitCode::io_failure)
        << key << " " << bad;
  }
}

TEST(Faults, SomethingInTheWayIsQuarantined) {
  for (const bool folder_in_the_way : {true, false}) {
    Saved saved;
    const auto path = saved.folder.path() / "step_00000003";
    on_rank_0([&] {
      if (folder_in_the_way) fs::create_directory(path);
      std::ofstream(folder_in_the_way ? path / "notes" : path) << "mine";
    });
    saved.run.fill(3);
    saved.store->save(saved.run.state(), progress(3));
    saved.run.fill(0);
    EXPECT_EQ(saved.store->resume(saved.run.state(), "auto")->step, 3);
    EXPECT_EQ(saved.run.wrong(3), 0);
    EXPECT_TRUE(fs::exists(saved.folder.path() / "step_00000003.quarantined-1"));
  }
}

TEST(Faults, WhatIsQuarantinedGoesWhenTheRunHasPassedIt) {
  Saved saved;
  const auto aside = [&](int step) {
    return fs::exists(saved.folder.path() / fmt::format("step_{:08}.quarantined-1", step));
  };
  saved.store->save(saved.run.state(), progress(1));  // goes back before step 2
  world().barrier();
  EXPECT_TRUE(aside(1) && aside(2));
  saved.store->save(saved.run.state(), progress(2));
  world().barrier();
  EXPECT_TRUE(!aside(1) && aside(2));
  saved.store->save(saved.run.state(), progress(3));
  world().barrier();
  EXPECT_FALSE(aside(2));
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& at : fs::directory_iterator(folder)) {
    const auto name = at.path().filename().string();
    if (name.starts_with("step_")) names.push_back(name.substr(5));
  }
  std::ranges::sort(names);
  return names;
}

TEST(Faults, OnlyGoodCheckpointsCountAmongThoseKept) {
  using Names = std::vector<std::string>;
  Saved saved;  // steps 1 and 2
  saved.store.reset();
  on_rank_0([&] {
    const auto h5 = saved.newest() / "state.h5";
    flip(h5, static_cast<std::int64_t>(fs::file_size(h5)) / 2);  // inside a dataset
  });
  CheckpointOptions options;
  options.keep = 2;
  saved.store.emplace(saved.folder.path(), options, world());  // has verified none of them
  const auto save = [&](int step) {
    world().barrier();  // for ranks that still look at the names
    saved.run.fill(step);
    saved.store->save(saved.run.state(), progress(step));
    world().barrier();
  };
  save(3);
  EXPECT_EQ(names_in(saved.folder.path()),
            (Names{"00000001", "00000002.quarantined-1", "00000003"}))
      << "step 1 is still needed";
  save(4);
  EXPECT_EQ(names_in(saved.folder.path()), (Names{"00000003", "00000004"}));
}

TEST(Faults, OfTheQuarantinedTheNewestStay) {
  using Names = std::vector<std::string>;
  const Folder folder;
  const Job run(1);
  CheckpointOptions options;
  options.keep = 8;
  Store store(folder.path(), options, world());
  for (const int step : {2, 3, 4, 5}) store.save(run.state(), progress(step));
  for (int twice = 0; twice < 2; ++twice) {  // goes back before all of them
    store.save(run.state(), progress(1));
    world().barrier();
  }
  EXPECT_EQ(names_in(folder.path()),
            (Names{"00000001", "00000004.quarantined-1", "00000005.quarantined-1"}));
}

/// A tmpfs smaller than the data to write; unavailable without permission to mount.
class SmallDisk {
 public:
  SmallDisk(const fs::path& path, const char* options) : path_(path) {
    ok_ = comm::on_rank_0(world(), [&] {
            return std::string(mount("tmpfs", path.c_str(), "tmpfs", 0, options) == 0 ? "y" : "n");
          }) == "y";
  }
  ~SmallDisk() {
    world().barrier();
    if (ok_ && world().rank() == 0) umount2(path_.c_str(), MNT_DETACH);
  }
  bool ok() const { return ok_; }

 private:
  fs::path path_;
  bool ok_;
};

TEST(Faults, LeftoversOfAKilledSaveAreRemovedAtTheNextLaunch) {
  const Folder folder;
  const SmallDisk disk(folder.path(), "size=512k");
  if (!disk.ok()) GTEST_SKIP() << "no right to mount a tmpfs";
  const Job run(1);
  run.fill(1);
  std::optional<Store> store(std::in_place, folder.path(), CheckpointOptions{}, world());
  store->save(run.state(), progress(1));
  store.reset();
  on_rank_0([&] {  // fill the disk
    for (const auto& name : {"step_00000002.partial-77.0", "step_00000001.partial-removed"}) {
      fs::create_directory(folder.path() / name);
      std::ofstream(folder.path() / name / "state.h5") << std::string(40 << 10, 'x');
    }
    std::ofstream all(folder.path() / "step_00000002.partial-77.0/more");
    while (all) all << std::string(4096, 'x') << std::flush;
    EXPECT_EQ(fs::space(folder.path()).available, 0U);
  });
  world().barrier();
  EXPECT_GE(checkpoint::partial_checkpoint_bytes(folder.path()), 80 << 10);
  world().barrier();
  store.emplace(folder.path(), CheckpointOptions{}, world());
  world().barrier();
  EXPECT_EQ(checkpoint::partial_checkpoint_bytes(folder.path()), 0);
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"00000001"}));
  run.fill(0);
  EXPECT_EQ(store->resume(run.state(), "auto")->step, 1);
  EXPECT_EQ(run.wrong(1), 0);
}

TEST(Faults, ASecondJobIsRefused) {
  Saved saved;
  EXPECT_EQ(code_of([&] { Store(saved.folder.path(), {}, world()); }), ExitCode::bad_input);
  saved.store.reset();
  EXPECT_EQ(code_of([&] { Store(saved.folder.path(), {}, world()); }), ExitCode::done);
}

/// Covers the moment between lock and name, and a file with other content.
TEST(Faults, AJobWithoutANameIsReported) {
  const Folder folder;
  const std::pair<const char*, const char*> cases[] = {
      {"", "another job, which has not given its name yet, is writing into "},
      {"77", "job 77 is writing"}};
  if (world().rank() == 0)
    for (const auto& [text, said] : cases) {
      std::ofstream(folder.path() / ".lease") << text;
      const auto held = Descriptor::to_read(folder.path() / ".lease");
      ASSERT_EQ(flock(held.get(), LOCK_EX), 0);
      const auto error = error_of([&] { const checkpoint::Lease lease(folder.path()); });
      EXPECT_EQ(error.find(said), 0U) << error;
      EXPECT_NE(error.find("holds " + folder.path().string() + "/.lease; wait"), error.npos);
    }
  world().barrier();
}

TEST(Faults, AFullDiskLeavesTheFormerCheckpoint) {
  const Folder folder;
  const SmallDisk disk(folder.path(), "size=384k");
  if (!disk.ok()) GTEST_SKIP() << "no right to mount a tmpfs";
  const Job run(1);
  Store store(folder.path(), {}, world());
  run.fill(1);
  store.save(run.state(), progress(1));
  EXPECT_EQ(code_of([&] { store.save(run.state(), progress(2)); }), ExitCode::io_failure);
  run.fill(0);
  EXPECT_EQ(store.resume(run.state(), "auto")->step, 1);
  EXPECT_EQ(run.wrong(1), 0);
}

}  // namespace
}  // namespace llamesh::test
