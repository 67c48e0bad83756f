#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "comm/mpi/session.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "core/process.hpp"
#include "support.hpp"

namespace llamesh::test {
namespace {
const comm::Communicator* world_of_tests = nullptr;
}
const comm::Communicator& world() {
  return *world_of_tests;
}

namespace {

/// Skips tests from sources other than `path`: a folder's tests are one program.
void keep_those_of(const std::string& path) {
  std::string others;
  int kept = 0;
  const auto& all = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const auto& suite = *all.GetTestSuite(i);
    for (int k = 0; k < suite.total_test_count(); ++k) {
      const auto& test = *suite.GetTestInfo(k);
      if (std::string_view(test.file()).ends_with("/" + path))
        ++kept;
      else
        others += fmt::format(":{}.{}", suite.name(), test.name());
    }
  }
  validate(kept > 0, "no test of {} is in this program", path);
  auto filter = GTEST_FLAG_GET(filter);
  if (others.empty()) return;
  if (filter.find('-') == std::string::npos) others.front() = '-';
  GTEST_FLAG_SET(filter, filter + others);
}

}  // namespace
}  // namespace llamesh::test

/// Runs the tests on all ranks, or those from one source if it is named (comm/launch_test.cpp).
/// Rank 0 prints; the others print only on a failure. The process fails if any rank saw a failure.
int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  setenv("LLAMESH_SILENCE", "600", 0);  // a rank may get no processor for some time
  if (argc > 1) llamesh::test::keep_those_of(argv[1]);
  const llamesh::comm::MpiSession session;
  llamesh::test::world_of_tests = &session.world();
  llamesh::setup_logging();
  if (session.world().rank() != 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    struct FailuresOnly : ::testing::EmptyTestEventListener {
      void OnTestPartResult(const ::testing::TestPartResult& result) override {
        if (result.failed())
          fmt::print(stderr, "rank {}: {}:{}: {}\n", llamesh::this_process().rank,
                     result.file_name() ? result.file_name() : "?", result.line_number(),
                     result.message());
      }
    };
    listeners.Append(new FailuresOnly);
  }
  return session.world().max(static_cast<std::int64_t>(RUN_ALL_TESTS())) == 0 ? 0 : 1;
}
