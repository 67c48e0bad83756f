#include <sys/stat.h>

#include <cstdio>
#include <fstream>
#include <iterator>

#include "core/file.hpp"
#include "fixture.hpp"

namespace llamesh::test {
namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointOptions;
using checkpoint::Store;
using sharding::Wrap;

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<int> divisors() {
  std::vector<int> all;
  for (int d = 1; d <= world().size(); ++d)
    if (world().size() % d == 0) all.push_back(d);
  return all;
}

TEST(Store, EveryMeshReadsWhatEveryMeshWrote) {
  for (const int saved_on : divisors()) {
    const Folder folder;
    const Job writer(saved_on);
    writer.fill(1);
    Store(folder.path(), {}, world()).save(writer.state(), progress(5));
    for (const int loaded_on : divisors())
      for (const auto wrap : {Wrap::layer, Wrap::size, Wrap::none}) {
        const Job reader(loaded_on, wrap);
        const auto got = Store(folder.path(), {}, world()).resume(reader.state(), "auto");
        ASSERT_TRUE(got);
        EXPECT_EQ(*got, progress(5));
        EXPECT_EQ(reader.wrong(1), 0);
        EXPECT_GT(reader.wrong(2), 0);
      }
  }
}

TEST(Store, OneRankReadsAndChecksWhatAllWrote) {
  const Folder folder;
  const Job writer(1);
  writer.fill(3);
  const auto path = Store(folder.path(), {}, world()).save(writer.state(), progress(8));
  EXPECT_TRUE(checkpoint::find_damage(path).empty());
}

TEST(Store, LargeInputsAreAnAttributeLikeAnyOther) {
  const Folder folder;
  const Job run(1);
  run.fill(1);
  auto large = progress(1);
  large.config.clear();
  for (int i = 0; large.config.size() < 300'000; ++i)
    large.config += fmt::format("key_{}: {}\n", i, i);
  const auto path = Store(folder.path(), {}, world()).save(run.state(), large);
  EXPECT_EQ(Store(folder.path(), {}, world()).resume(run.state(), "auto")->config, large.config);
  if (world().rank() != 0 || std::system("h5dump --version > /dev/null 2>&1") != 0) return;
  const auto dumped = folder.path() / "text";
  const auto command =
      fmt::format("h5dump -a /config {} > {}", (path / "state.h5").string(), dumped.string());
  EXPECT_EQ(std::system(command.c_str()), 0);
  EXPECT_NE(bytes_of(dumped).find("key_0: 0"), std::string::npos);
  EXPECT_NE(bytes_of(dumped).find("key_15000: 15000"), std::string::npos);
}

TEST(Store, NothingThereIsANewRun) {
  const Folder folder;
  const Job run(1);
  Store store(folder.path(), {}, world());
  EXPECT_FALSE(store.resume(run.state(), "auto"));
  EXPECT_FALSE(store.resume(run.state(), "none"));
}

TEST(Store, KeepsTheNewestAndEveryMth) {
  const Folder folder;
  const Job run(1);
  CheckpointOptions options;
  options.keep = 2;
  options.keep_every = 3;
  Store store(folder.path(), options, world());
  for (int step = 1; step <= 7; ++step) store.save(run.state(), progress(step));
  world().barrier();
  std::vector<std::string> names;
  for (const auto& path : checkpoint::committed_checkpoints(folder.path()))
    names.push_back(path.filename());
  EXPECT_EQ(names, (std::vector<std::string>{"step_00000007", "step_00000006", "step_00000003"}));
}

TEST(Store, KeepsTheBestAndNamesIt) {
  const Folder folder;
  const Job run(1);
  CheckpointOptions options;
  options.keep = 1;
  Store store(folder.path(), options, world());
  const auto best = folder.path() / checkpoint::best_name;
  for (int step = 1; step <= 5; ++step) store.save(run.state(), progress(step), {9, 2, 3});
  world().barrier();
  std::vector<std::string> names;
  for (const auto& path : checkpoint::committed_checkpoints(folder.path()))
    names.push_back(path.filename());
  EXPECT_EQ(names, (std::vector<std::string>{"step_00000005", "step_00000003", "step_00000002"}));
  EXPECT_EQ(read_file(best, 100), "step_00000002\n") << "step 9 is not there";
  world().barrier();
  store.save(run.state(), progress(6));
  world().barrier();
  EXPECT_FALSE(fs::exists(best));
  EXPECT_EQ(checkpoint::committed_checkpoints(folder.path()).size(), 1U);
}

TEST(Store, FilesAreForTheGroupAndNotForOthers) {
  const Folder folder;
  const Job run(1);
  const auto before = umask(0);
  Store(folder.path() / "c", {}, world()).save(run.state(), progress(1));
  umask(before);
  world().barrier();
  int seen = 0;
  for (const auto& at : fs::recursive_directory_iterator(folder.path())) {
    const auto expected = static_cast<fs::perms>(at.is_directory() ? 0750 : 0640);
    EXPECT_EQ(at.status().permissions(), expected) << at.path();
    ++seen;
  }
  EXPECT_EQ(seen, 6);  // c, .lease, LATEST, step_00000001, state.h5, manifest.json
}

TEST(Store, WhoeverResumesMayRefuseBeforeAnythingIsRead) {
  const Folder folder;
  const Job run(1);
  run.fill(1);
  Store store(folder.path(), {}, world());
  store.save(run.state(), progress(1));
  run.fill(2);
  const auto refuse = [](const checkpoint::TrainState& saved) {
    fail(ExitCode::bad_input, "not step {}", saved.step);
  };
  EXPECT_EQ(code_of([&] { store.resume(run.state(), "auto", refuse); }), ExitCode::bad_input);
  EXPECT_EQ(run.wrong(2), 0);
}

TEST(Store, AnAsynchronousSaveHoldsTheStateOfItsCall) {
  const Folder folder;
  const Job run(1);
  CheckpointOptions options;
  options.async = true;
  {
    Store store(folder.path(), options, world());
    for (int step = 1; step <= 3; ++step) {
      run.fill(step);
      store.save(run.state(), progress(step));
      run.fill(99);                                             // training continues
      EXPECT_EQ(world().sum(std::int64_t{1}), world().size());  // and so do its collectives
    }
    store.wait();
    EXPECT_EQ(store.resume(run.state(), "auto")->step, 3);
  }
  EXPECT_EQ(run.wrong(3), 0);
}

TEST(Store, AnErrorOfAnAsynchronousSaveSurfaces) {
  const Folder folder;
  const Job run(1);
  CheckpointOptions options;
  options.async = true;
  Store store(folder.path() / "c", options, world());
  if (world().rank() == 0) {
    fs::remove_all(folder.path() / "c");
    std::ofstream(folder.path() / "c") << "a file in the way";
  }
  world().barrier();
  store.save(run.state(), progress(1));
  EXPECT_EQ(code_of([&] { store.wait(); }), ExitCode::io_failure);
  EXPECT_EQ(code_of([&] { store.wait(); }), ExitCode::done);
}

TEST(Store, H5dumpReadsEveryNumberAndTheTiedAlias) {
  if (std::system("h5dump --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no h5dump";
  const Folder folder;
  const Job run(1, Wrap::layer, small_config(24, /*tied=*/true));
  run.fill(1);
  const auto path = Store(folder.path(), {}, world()).save(run.state(), progress(1));
  if (world().rank() != 0) return;
  const auto dump = [&](const std::string& options) {
    const auto command = "cd " + folder.path().string() + " && h5dump " + options + " " +
                         (path / "state.h5").string() + " > text 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  };
  const auto datasets = checkpoint::read_manifest(path).datasets;
  ASSERT_EQ(datasets.size(), 3 * run.table.parameters.size());
  for (const auto& d : datasets) {
    std::string expected;
    checkpoint::for_each_range(path, d, [&](std::int64_t, std::span<const float> values) {
      expected.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    });
    dump("-d " + d.path + " -b LE -o values");
    EXPECT_TRUE(bytes_of(folder.path() / "values") == expected) << d.path;
  }
  dump("-H");
  EXPECT_NE(bytes_of(folder.path() / "text").find("SOFTLINK \"lm_head.weight\""),
            std::string::npos);
}

}  // namespace
}  // namespace llamesh::test
