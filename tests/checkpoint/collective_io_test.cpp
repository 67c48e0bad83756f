#include "checkpoint/state_writer.hpp"

#include <future>
#include <thread>

#include "checkpoint/h5.hpp"
#include "comm/diagnosis/watchdog.hpp"
#include "fixture.hpp"
#include "patience.hpp"

namespace llamesh::test {
namespace {

using namespace std::chrono_literals;
using checkpoint::agree_or_abort;
using checkpoint::h5::File;
using comm::Diagnosis;

enum class LateTo : bool { opening, closing };

/// A phase in which HDF5 itself communicates. All ranks but one enter it and wait for that one.
class CollectiveIo : public testing::Test {
 protected:
  void SetUp() override {
    if (world().size() == 1) GTEST_SKIP() << "needs another rank";
    comm::agree(world(), [this] {
      if (world().rank() == 0) File::create(path_).close();
    });
  }
  static int late_rank() { return world().size() / 2; }

  /// Returns this rank's watchdog report while the file is opened and closed.
  Diagnosis reported(LateTo late_to) {
    const bool late = world().rank() == late_rank();
    std::promise<Diagnosis> alarm;
    auto reported = alarm.get_future();
    comm::Watchdog watchdog(
        world(), [&](const Diagnosis& verdict) { alarm.set_value(verdict); },
        {.interval = late ? 1000ms : 20ms,  // slower, so that the others report it
         .silence = 30s,
         .in_a_collective = 200ms,
         .answer = test::stretched(30s)});
    watchdog.begin(comm::Activity::saving, 20, 2s);
    const auto come_late = [&] {
      reported.wait_for(test::stretched(60s));
      std::this_thread::sleep_for(500ms);  // time for the alarm to reach the waiting ranks
    };
    std::optional<File> file;
    if (late && late_to == LateTo::opening) come_late();
    agree_or_abort(world(), "opening", [&] { file = File::open_to_fill(path_, world(), {}); });
    if (late && late_to == LateTo::closing) come_late();
    agree_or_abort(world(), "closing", [&] { file->close(); });
    return reported.wait_for(test::stretched(60s)) == std::future_status::ready
               ? reported.get()
               : Diagnosis{"none", {}, {}, {}};
  }
  void expect_named(const Diagnosis& verdict, const std::string& collective) const {
    if (world().rank() != 0 && verdict.line.empty()) return;  // another rank told us
    EXPECT_EQ(verdict.ranks, std::vector{late_rank()});
    EXPECT_NE(verdict.line.find(" has not come to the " + collective + " for "), std::string::npos)
        << verdict.line;
    EXPECT_TRUE(verdict.line.ends_with(" s: it is saving step 20")) << verdict.line;
  }

  Folder folder_;
  std::filesystem::path path_ = folder_.path() / "state.h5";
};

TEST_F(CollectiveIo, NamesARankThatDoesNotComeToAnOpening) {
  expect_named(reported(LateTo::opening), "opening of state.h5 along world");
}

TEST_F(CollectiveIo, NamesARankThatDoesNotComeToAClosing) {
  expect_named(reported(LateTo::closing), "closing of state.h5 along world");
}

}  // namespace
}  // namespace llamesh::test
