#include "comm/calls/flight_record.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <fstream>

#include "core/process.hpp"
#include "temporary_folder.hpp"

namespace llamesh::comm {
namespace {

class FlightRecord : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(FlightRecorder::instance().keep_in(
        file_, {.rank = 3, .world_size = 8, .job = 5, .host = "node2", .next_host = "node3"}));
  }
  void TearDown() override { FlightRecorder::instance().release(); }

  /// Reads the record like another process, which also works after this one was killed.
  FlightSnapshot read() const {
    FlightSnapshot snapshot;
    std::ifstream in(file_, std::ios::binary);
    in.read(reinterpret_cast<char*>(&snapshot), sizeof(snapshot));
    EXPECT_EQ(in.gcount(), static_cast<std::streamsize>(sizeof(snapshot)));
    return snapshot;
  }
  static const FlightEntry& at(const FlightSnapshot& snapshot, std::int64_t ticket) {
    return snapshot.records[static_cast<std::size_t>(ticket) % FlightSnapshot::max_records];
  }

  test::TemporaryFolder folder_;
  std::filesystem::path file_ = folder_.path() / "record";
  std::shared_ptr<const Members> members_ =
      std::make_shared<const Members>(Members{"shard", 42, {0, 1}});
};

TEST_F(FlightRecord, HasACollectiveFromItsCallToItsEnd) {
  auto& recorder = FlightRecorder::instance();
  const auto call = CollectiveCall::of("all-gather", "layers.3", "bf16", 4096);
  const auto one = recorder.ask(members_, call);
  const auto ticket = one.call.ticket;
  const auto asked = at(read(), ticket);
  EXPECT_EQ(asked.ticket, ticket);
  EXPECT_STREQ(asked.axis.data(), "shard");
  EXPECT_STREQ(asked.kind.data(), "all-gather");
  EXPECT_STREQ(asked.subject.data(), "layers.3");
  EXPECT_STREQ(asked.dtype.data(), "bf16");
  EXPECT_EQ(asked.bytes, 4096);
  EXPECT_GT(asked.asked, 0);
  EXPECT_EQ(asked.started, 0);
  {
    const InCollective in(one);
    const auto started = at(read(), ticket);
    EXPECT_TRUE(started.in_progress());
    EXPECT_EQ(started.number, recorder.entered(42));
    EXPECT_GE(started.started, started.asked);
  }
  const auto finished = at(read(), ticket);
  EXPECT_FALSE(finished.in_progress());
  EXPECT_GE(finished.finished, finished.started);
}

TEST_F(FlightRecord, SaysWhoWhereAndWhat) {
  FlightRecorder::instance().set_activity(3, 14);
  FlightRecorder::instance().tick();
  const auto snapshot = read();
  EXPECT_EQ(snapshot.layout, FlightSnapshot::known_layout);
  EXPECT_EQ(snapshot.rank, 3);
  EXPECT_EQ(snapshot.world_size, 8);
  EXPECT_EQ(snapshot.job, 5);
  EXPECT_STREQ(snapshot.host.data(), "node2");
  EXPECT_STREQ(snapshot.next_host.data(), "node3");
  EXPECT_EQ(snapshot.activity, 3);
  EXPECT_EQ(snapshot.step, 14);
  EXPECT_GT(snapshot.alive_at, 0);
}

TEST_F(FlightRecord, KeepsTheLastThousandAndCutsVeryLongNames) {
  auto& recorder = FlightRecorder::instance();
  const std::string name(200, 'x');
  const auto oldest = recorder.ask(members_, CollectiveCall::of("barrier", name));
  for (int i = 0; i < 1000; ++i) recorder.ask(members_, CollectiveCall::of("barrier", "later"));
  { const InCollective in(oldest); }  // its slot is taken
  const auto first = oldest.call.ticket;
  const auto snapshot = read();
  EXPECT_EQ(at(snapshot, first).ticket, first + 1000);
  EXPECT_EQ(at(snapshot, first).started, 0);
  EXPECT_EQ(at(snapshot, first + 1).ticket, first + 1);
  EXPECT_STREQ(at(snapshot, first + 1).subject.data(), "later");
  recorder.ask(members_, CollectiveCall::of("barrier", name));
  EXPECT_EQ(std::string(at(read(), first + 1).subject.data()), std::string(95, 'x'));
}

TEST_F(FlightRecord, HasTheLongestNamesWhole) {
  const auto along_all =
      std::make_shared<const Members>(Members{"replicate x shard x tensor", 42, {0, 1}});
  const std::string purpose = "the loss, the gradient norm and the measurements of the step";
  const auto ticket = FlightRecorder::instance()
                          .ask(along_all, CollectiveCall::of("all-reduce", purpose))
                          .call.ticket;
  const auto snapshot = read();
  EXPECT_EQ(at(snapshot, ticket).axis.data(), along_all->name);
  EXPECT_EQ(at(snapshot, ticket).subject.data(), purpose);
}

TEST_F(FlightRecord, HasTheSignalsThatAskToEnd) {
  catch_stop_signals();
  EXPECT_EQ(read().stop_signals & (1U << SIGTERM), 0U);
  std::raise(SIGTERM);
  EXPECT_NE(read().stop_signals & (1U << SIGTERM), 0U);
  catch_stop_signals();
}

TEST_F(FlightRecord, IsThisProcessAloneWithoutItsFile) {
  FlightRecorder::instance().release();
  const auto ticket =
      FlightRecorder::instance().ask(members_, CollectiveCall::of("barrier", "")).call.ticket;
  EXPECT_NE(at(read(), ticket).ticket, ticket);
  EXPECT_FALSE(FlightRecorder::instance().keep_in(folder_.path() / "missing/record", {}));
}

}  // namespace
}  // namespace llamesh::comm
