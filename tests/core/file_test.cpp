#include "core/file.hpp"

#include <fcntl.h>
#include <sys/resource.h>

#include <csignal>
#include <functional>

#include "hostile_files.hpp"
#include "temporary_folder.hpp"

namespace llamesh {
namespace {

namespace fs = std::filesystem;

ExitCode code_of(const std::function<void()>& work, std::string* what = nullptr) {
  try {
    work();
    return ExitCode::done;
  } catch (const Error& error) {
    if (what != nullptr) *what = error.what();
    return error.code();
  }
}

class File : public testing::Test {
 protected:
  test::TimeLimit limit_{30};
  test::TemporaryFolder folder_;
  fs::path path_ = folder_.path() / "it";
};

TEST_F(File, OnlyARegularOneIsRead) {
  for (const auto& kind : test::hostile_kinds())
    for (const auto code : {ExitCode::bad_input, ExitCode::io_failure}) {
      SCOPED_TRACE(kind);
      test::put_hostile(kind, path_);
      std::string what;
      EXPECT_EQ(code_of([&] { read_file(path_, 100, code); }, &what), code);
      EXPECT_NE(what.find(path_.string()), std::string::npos) << what;
      EXPECT_TRUE(what.find("regular file") != what.npos || what.find("folder") != what.npos)
          << what;
    }
  fs::remove_all(path_);
  EXPECT_EQ(code_of([&] { read_file(path_, 100); }), ExitCode::bad_input);
  EXPECT_EQ(code_of([&] { read_file(path_, 100, ExitCode::io_failure); }), ExitCode::io_failure);
  folder_.write("elsewhere", "text");
  fs::create_symlink(folder_.path("elsewhere"), path_);
  EXPECT_EQ(read_file(path_, 4), "text");
}

TEST_F(File, IsNotReadWhenItIsTooLong) {
  test::put_sparse(path_, std::uintmax_t{1} << 40);
  std::string what;
  EXPECT_EQ(code_of([&] { read_file(path_, 100); }, &what), ExitCode::bad_input);
  EXPECT_NE(what.find("has 1099511627776 bytes; at most 100 are read"), std::string::npos) << what;
}

TEST_F(File, AMissingOneNamesThoseThatAreNear) {
  fs::create_directories(folder_.path("inputs/more"));
  folder_.write("inputs/tiny.yaml", "");
  folder_.write("inputs/more/tiny2.yaml", "");
  const auto near = [&](const std::string& path) { return did_you_mean_path(folder_.path(path)); };
  const auto hint = [&](const std::string& path) {
    return "; did you mean '" + folder_.path(path) + "'?";
  };
  EXPECT_EQ(near("input/tiny.yaml"), hint("inputs/tiny.yaml"));
  EXPECT_EQ(near("inputs/tinny.yaml"), hint("inputs/tiny.yaml"));
  EXPECT_EQ(near("inputs/mroe/tiny2.yaml"), "") << "two letters of four";
  EXPECT_EQ(near("inputs/mor/tiny2.yaml"), hint("inputs/more/tiny2.yaml"));
  EXPECT_EQ(near("input/other.yaml"), "") << "inputs has none";
  EXPECT_EQ(near("inputs/" + std::string(300, 'x')), "");
  EXPECT_EQ(near("inputs"), "") << "it is there";
  std::string what;
  EXPECT_EQ(code_of([&] { read_file(folder_.path("input/tiny.yaml"), 100); }, &what),
            ExitCode::bad_input);
  EXPECT_TRUE(what.ends_with("No such file or directory" + hint("inputs/tiny.yaml"))) << what;

  const auto here = fs::current_path();
  fs::current_path(folder_.path());
  fs::create_directories("runs/own");
  EXPECT_EQ(did_you_mean_path("own"), "; did you mean 'runs/own'?");
  EXPECT_EQ(did_you_mean_path("input/tiny.yaml"), "; did you mean 'inputs/tiny.yaml'?");
  fs::current_path(here);
}

TEST_F(File, OnlyARegularOneAndNoLinkIsWritten) {
  for (const auto& kind : test::hostile_kinds())
    for (const int flags : {O_WRONLY, O_RDWR | O_CREAT | O_APPEND}) {
      SCOPED_TRACE(kind);
      test::put_hostile(kind, path_);
      EXPECT_EQ(code_of([&] { Descriptor::to_write(path_, flags); }), ExitCode::bad_input);
    }
  fs::remove_all(path_);
  const fs::path elsewhere = folder_.write("elsewhere", "not ours");
  fs::create_symlink(elsewhere, path_);
  std::string what;
  EXPECT_EQ(code_of([&] { Descriptor::to_write(path_, O_WRONLY | O_CREAT | O_TRUNC); }, &what),
            ExitCode::bad_input);
  EXPECT_NE(what.find("is a symbolic link"), std::string::npos) << what;
  EXPECT_EQ(read_file(elsewhere, 100), "not ours");
}

TEST_F(File, IsReplacedWhateverLiesThereAndAtTheTemporaryName) {
  const auto temporary = fs::path(path_.string() + ".0.tmp");
  const fs::path elsewhere = folder_.write("elsewhere", "not ours");
  for (const auto& kind : {"fifo", "socket", "device"}) {
    test::put_hostile(kind, path_);
    test::put_hostile(kind, temporary);
    write_durably(path_, "new");
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(path_))) << kind;
    EXPECT_EQ(read_file(path_, 100), "new") << kind;
    EXPECT_FALSE(fs::exists(fs::symlink_status(temporary))) << kind;
  }
  fs::create_symlink(elsewhere, temporary);
  write_durably(path_, "newer");
  EXPECT_EQ(read_file(path_, 100), "newer");
  EXPECT_EQ(read_file(elsewhere, 100), "not ours");
}

TEST_F(File, StaysAsItWasWhenTheNewOneCannotBeWritten) {
  write_durably(path_, "old");
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small{10, limit.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  std::string what;
  const auto code = code_of([&] { write_durably(path_, std::string(100, 'x')); }, &what);
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, before);
  EXPECT_EQ(code, ExitCode::io_failure);
  EXPECT_NE(what.find("File too large"), std::string::npos) << what;
  EXPECT_EQ(read_file(path_, 100), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 1);
}

std::vector<std::string> lines_of(const fs::path& path) {
  std::vector<std::string> lines;
  for_each_line(Descriptor::to_read(path), [&](std::string_view line, bool ended) {
    lines.push_back(std::string(line) + (ended ? "." : "?"));
  });
  return lines;
}

TEST_F(File, GivesItsLines) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(lines_of(folder_.write("a", "")), Lines{});
  EXPECT_EQ(lines_of(folder_.write("a", "\n")), Lines{"."});
  EXPECT_EQ(lines_of(folder_.write("a", "one\n\nthree")), (Lines{"one.", ".", "three?"}));
  const std::string longest(1 << 20, 'x');  // spans several reads
  EXPECT_EQ(lines_of(folder_.write("a", "ab\n" + longest + "\nc\n")),
            (Lines{"ab.", longest + ".", "c."}));
  EXPECT_EQ(code_of([&] { lines_of(folder_.write("a", "ab\n" + longest + "x")); }),
            ExitCode::bad_input);
  test::put_sparse(path_, std::uintmax_t{1} << 40, "ab\n");
  EXPECT_EQ(code_of([&] { lines_of(path_); }), ExitCode::bad_input);
}

TEST_F(File, GoesIntoQuarantineUnderAFreeName) {
  for (const auto& name : {"it.quarantined-1", "it.quarantined-2"}) {
    folder_.write("it", "x");
    EXPECT_EQ(quarantine(path_, path_), folder_.path() / name);
    EXPECT_FALSE(fs::exists(path_));
  }
}

}  // namespace
}  // namespace llamesh
