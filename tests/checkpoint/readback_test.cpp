#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/file.hpp"
#include "fixture.hpp"

namespace {

bool rot = false;  ///< corrupt state.h5 as soon as it is synced

void flip_a_byte_in_the_middle(const std::filesystem::path& path) {
  auto file = llamesh::Descriptor::to_write(path, O_RDWR);
  const auto at = file.bytes() / 2;  // inside a dataset
  char byte = 0;
  file.read(at, &byte, 1);
  byte = static_cast<char>(byte ^ 1);
  file.write(at, &byte, 1);
}

}  // namespace

/// Replaces the C library's fsync: emulates a disk or file system that loses data.
extern "C" int fsync(int fd) {
  const auto result = static_cast<int>(syscall(SYS_fsync, fd));
  const auto path = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd));
  if (rot && path.filename() == "state.h5" && llamesh::test::world().rank() == 0)
    flip_a_byte_in_the_middle(path);
  return result;
}

namespace llamesh::test {
namespace {

namespace fs = std::filesystem;
using checkpoint::Store;

TEST(ReadBack, NothingIsRemovedForACheckpointThatIsNotAsWritten) {
  const Folder folder;
  const Job run(1);
  for (const bool async : {false, true}) {
    checkpoint::CheckpointOptions options;
    options.keep = 1;
    options.async = async;
    Store store(folder.path(), options, world());
    run.fill(1);
    store.save(run.state(), progress(1));
    store.wait();
    rot = true;
    const auto save = [&] {
      store.save(run.state(), progress(2));
      store.wait();
    };
    EXPECT_EQ(code_of(save), ExitCode::io_failure);
    rot = false;
    run.fill(0);
    const auto got = store.resume(run.state(), "auto");
    ASSERT_TRUE(got);
    EXPECT_EQ(got->step, 1);
    EXPECT_EQ(run.wrong(1), 0);
    EXPECT_TRUE(fs::exists(folder.path() / "step_00000002.quarantined-1"));

    run.fill(3);
    store.save(run.state(), progress(3));  // a good one replaces both
    store.wait();
    run.fill(0);
    EXPECT_EQ(store.resume(run.state(), "auto")->step, 3);
    EXPECT_FALSE(fs::exists(folder.path() / "step_00000001"));
    EXPECT_FALSE(fs::exists(folder.path() / "step_00000002.quarantined-1"));
    world().barrier();
  }
}

}  // namespace
}  // namespace llamesh::test
