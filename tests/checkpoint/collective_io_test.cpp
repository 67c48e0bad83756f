#include "checkpoint/format/state_writer.hpp"

#include <future>
#include <optional>

#include "checkpoint/format/h5.hpp"
#include "comm/diagnosis/watchdog.hpp"
#include "fixture.hpp"
#include "patience.hpp"
#include "watchdog_by_hand.hpp"

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

  /// Returns this rank's watchdog report while the file is opened and closed; nothing on the late
  /// rank.
  std::optional<Diagnosis> reported(LateTo late_to) {
    std::optional<File> file;
    const auto open = [&] {
      agree_or_abort(world(), "opening", [&] { file = File::open_to_fill(path_, world(), {}); });
    };
    const auto close = [&] { agree_or_abort(world(), "closing", [&] { file->close(); }); };
    if (world().rank() == late_rank()) {
      WatchdogByHand watchdog;
      if (late_to == LateTo::closing) open();
      watchdog.answer({comm::Activity::saving, 20, 61, 60, always_silent});
      if (late_to == LateTo::opening) open();
      close();
      return {};
    }
    std::promise<Diagnosis> alarm;
    auto reported = alarm.get_future();
    comm::Watchdog watchdog(
        world(), [&](const Diagnosis& diagnosis) { alarm.set_value(diagnosis); },
        {.interval = 20ms, .silence = never, .in_a_collective = 200ms, .answer = 5000ms});
    watchdog.begin(comm::Activity::saving, 20, never);
    open();
    close();
    EXPECT_EQ(reported.wait_for(stretched(60s)), std::future_status::ready);
    return reported.get();
  }
  void expect_named(const std::optional<Diagnosis>& diagnosis,
                    const std::string& collective) const {
    if (!diagnosis || diagnosis->line.empty()) return;  // another rank has reported
    EXPECT_EQ(diagnosis->kind, "late");
    EXPECT_EQ(diagnosis->ranks, std::vector{late_rank()});
    EXPECT_NE(diagnosis->line.find(" has not come to the " + collective + " for "),
              std::string::npos)
        << diagnosis->line;
    EXPECT_TRUE(diagnosis->line.ends_with(" s: it is saving step 20")) << diagnosis->line;
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
