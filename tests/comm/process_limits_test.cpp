#include "comm/mpi/process_limits.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <map>
#include <string>

#include "support.hpp"
#include "temporary_folder.hpp"

namespace llamesh::comm {
namespace {

/// Another soft limit of this process, for the scope.
class LowerLimit {
 public:
  LowerLimit(__rlimit_resource_t resource, rlim_t limit) : resource_(resource) {
    EXPECT_EQ(getrlimit(resource_, &before_), 0);
    const rlimit lower{limit, before_.rlim_max};
    EXPECT_EQ(setrlimit(resource_, &lower), 0);
  }
  ~LowerLimit() { setrlimit(resource_, &before_); }
  LowerLimit(const LowerLimit&) = delete;
  LowerLimit& operator=(const LowerLimit&) = delete;

 private:
  __rlimit_resource_t resource_;
  rlimit before_{};
};

class ProcessLimits : public testing::Test {
 protected:
  void check(int ranks = 1, const char* library = "Open MPI v4.1.4") const {
    Launch launch;
    launch.ranks = ranks;
    check_process_limits(
        launch,
        [this](const char* name) {
          const auto found = environment_.find(name);
          return found == environment_.end() ? nullptr : found->second.c_str();
        },
        library);
  }
  std::string error(int ranks = 1) const {
    return test::error_of([&] { check(ranks); });
  }

  std::map<std::string, std::string> environment_;
};

TEST_F(ProcessLimits, OfThisProcessSuffice) {
  EXPECT_NO_THROW(check(1));
  EXPECT_NO_THROW(check(8));
}

TEST_F(ProcessLimits, TooFewOpenFiles) {
  const LowerLimit few(RLIMIT_NOFILE, 16);
  EXPECT_TRUE(error().starts_with("this process may open 16 files (ulimit -n)")) << error();
}

TEST_F(ProcessLimits, FilesTooSmallForSharedMemory) {
  const LowerLimit small(RLIMIT_FSIZE, 1000);
  EXPECT_TRUE(error(1).starts_with("this process may write files of 1000 bytes")) << error(1);
  environment_["PMIX_RANK"] = "0";
  EXPECT_NO_THROW(check(1)) << "one rank shares none";
  EXPECT_TRUE(error(2).starts_with("this process may write files of 1000 bytes")) << error(2);
}

TEST_F(ProcessLimits, AUmaskThatLocksItsUserOut) {
  const auto before = umask(0277);
  const auto text = error();
  umask(before);
  EXPECT_TRUE(text.starts_with("the umask is 277")) << text;
  EXPECT_EQ(umask(before), before) << "it has changed the umask";
}

TEST_F(ProcessLimits, OpenMpisTemporaryFolderWithoutALauncher) {
  const test::TemporaryFolder folder;
  environment_["TMP"] = folder.write("file", "") + "/in";
  EXPECT_TRUE(error().starts_with("TMP is " + environment_["TMP"] + ", where this process"))
      << error();
  EXPECT_NO_THROW(check(1, "MPICH Version: 4.0"));
  environment_["TMPDIR"] = folder.path("to/be/made");  // comes first
  EXPECT_NO_THROW(check());
  environment_["TMPDIR"] = folder.path("file");
  EXPECT_NE(error().find("TMPDIR is "), std::string::npos);
  environment_["PMIX_RANK"] = "0";
  EXPECT_NO_THROW(check());
}

}  // namespace
}  // namespace llamesh::comm
