#include <gtest/gtest.h>

#include "comm/session.hpp"
#include "core/log.hpp"
#include "core/process.hpp"
#include "mpi_world.hpp"

namespace llamesh::test {
namespace {
const comm::Communicator* world_of_tests = nullptr;
}
const comm::Communicator& world() {
  return *world_of_tests;
}
}  // namespace llamesh::test

/// Runs the tests on all ranks; rank 0 prints, the others only when something fails there. The
/// process fails when any rank saw a failure.
int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
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
