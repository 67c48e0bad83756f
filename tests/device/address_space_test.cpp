#include "device/host_memory.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>

#include "support.hpp"

namespace llamesh::device {
namespace {

constexpr std::int64_t mebibyte = 1 << 20;

/// Lets this process map so much more, as ulimit -v does.
class LimitedTo {
 public:
  explicit LimitedTo(std::int64_t more) {
    std::int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &before_);
    auto limited = before_;
    limited.rlim_cur = static_cast<rlim_t>(pages * 4096 + more);
    setrlimit(RLIMIT_AS, &limited);
  }
  ~LimitedTo() { setrlimit(RLIMIT_AS, &before_); }
  LimitedTo(const LimitedTo&) = delete;
  LimitedTo& operator=(const LimitedTo&) = delete;

 private:
  struct rlimit before_ {};
};

TEST(AddressSpace, ALimitThatLeavesTooLittleIsReported) {
  if (test::sanitized) GTEST_SKIP() << "AddressSanitizer maps terabytes";
  std::string error;
  {
    const LimitedTo limit(200 * mebibyte);
    check_address_space(150 * mebibyte);
    error = test::error_of([] { check_address_space(328 * mebibyte); });
  }
  EXPECT_NE(error.find("(ulimit -v or -d), does not leave the 328 MiB"), std::string::npos)
      << error;
}

TEST(AddressSpace, WithoutALimitAnythingGoes) {
  struct rlimit limit {};
  getrlimit(RLIMIT_AS, &limit);
  if (limit.rlim_cur != RLIM_INFINITY) GTEST_SKIP() << "this shell has a limit";
  check_address_space(std::int64_t{1} << 60);
}

TEST(AddressSpace, GrowsWithTheThreads) {
  EXPECT_GT(library_address_space(64) - library_address_space(1), std::int64_t{63} * 64 * mebibyte);
}

}  // namespace
}  // namespace llamesh::device
