#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <future>
#include <vector>

#include "comm/calls/flight_record.hpp"
#include "temporary_folder.hpp"

namespace llamesh::comm {
namespace {

/// A fixture with a worker's stream in place of a GPU's. Its work waits at a gate.
class QueuedCollectivesTest : public testing::Test {
 protected:
  struct Work {
    std::size_t number;  // in the stream
    std::promise<void> gate;
    device::Event done;
  };

  std::unique_ptr<Work> block() {
    auto work = std::make_unique<Work>(Work{at_gates_.size(), {}, {}});
    auto opened = std::make_shared<std::future<void>>(work->gate.get_future());
    auto at_gate = std::make_shared<std::promise<void>>();
    at_gates_.push_back(at_gate->get_future().share());
    stream_.run([opened, at_gate] {
      at_gate->set_value();
      opened->wait();
    });
    work->done = stream_.record();
    return work;
  }
  /// Opens the work's gate, and polls once the stream is at the next gate, if there is one.
  void pass(Work& work) {
    work.gate.set_value();
    work.done.wait();
    if (work.number + 1 < at_gates_.size()) at_gates_[work.number + 1].wait();
    recorder_.poll_queued();
  }
  /// Queues a collective that lasts until its gate opens.
  std::unique_ptr<Work> queue(const char* subject) {
    const auto call = CollectiveCall::of("all-gather", subject, "bf16", 4096);
    const auto asked = recorder_.ask(members_, call);
    ticket_ = asked.call.ticket;
    std::unique_ptr<Work> work;
    recorder_.queue(asked, stream_, [&] { work = block(); });
    work->done = stream_.record();  // not before the event that queue() has recorded
    return work;
  }
  std::vector<std::string> in_progress() const {
    std::vector<std::string> titles;
    for (const auto& one : recorder_.in_progress())
      titles.push_back(fmt::format("{} {}", one.call.number, title(one.call)));
    return titles;
  }
  static FlightEntry entry(const std::filesystem::path& file, std::int64_t ticket) {
    FlightSnapshot snapshot;
    std::ifstream(file, std::ios::binary)
        .read(reinterpret_cast<char*>(&snapshot), sizeof(snapshot));
    return snapshot.records[static_cast<std::size_t>(ticket) % FlightSnapshot::max_records];
  }

  FlightRecorder& recorder_ = FlightRecorder::instance();
  std::vector<std::shared_future<void>> at_gates_;
  device::Stream stream_ = device::Stream::worker();
  inline static std::uint64_t last_id = 1000;  // each test counts its collectives from 1
  std::shared_ptr<const Members> members_ =
      std::make_shared<const Members>(Members{"shard", ++last_id, {0, 1}});
  std::int64_t ticket_ = 0;
};

using Titles = std::vector<std::string>;

TEST_F(QueuedCollectivesTest, AreInProgressOnceTheStreamIsThereUntilItIsPast) {
  const auto kernel = block();
  const auto first = queue("layers.0");
  const auto second = queue("layers.1");
  recorder_.poll_queued();
  EXPECT_EQ(in_progress(), Titles{});
  EXPECT_EQ(recorder_.entered(members_->id), 0);
  pass(*kernel);
  EXPECT_EQ(in_progress(), Titles{"1 all-gather of layers.0 along shard"});
  EXPECT_EQ(recorder_.entered(members_->id), 1);
  pass(*first);
  EXPECT_EQ(in_progress(), Titles{"2 all-gather of layers.1 along shard"});
  pass(*second);
  EXPECT_EQ(in_progress(), Titles{});
  EXPECT_EQ(recorder_.entered(members_->id), 2);
}

TEST_F(QueuedCollectivesTest, AreRecordedAsStartedAndFinishedThen) {
  const test::TemporaryFolder folder;
  const auto file = folder.path() / "record";
  ASSERT_TRUE(recorder_.keep_in(file, {.host = "node2", .next_host = "node3"}));
  const auto kernel = block();
  const auto collective = queue("layers.0");
  recorder_.poll_queued();
  EXPECT_GT(entry(file, ticket_).asked, 0);
  EXPECT_EQ(entry(file, ticket_).started, 0);
  pass(*kernel);
  EXPECT_TRUE(entry(file, ticket_).in_progress());
  EXPECT_EQ(entry(file, ticket_).number, 1);
  pass(*collective);
  EXPECT_GE(entry(file, ticket_).finished, entry(file, ticket_).started);
  recorder_.release();
}

/// Queueing a collective may make the host wait for others.
TEST_F(QueuedCollectivesTest, AreInProgressBeforeTheyAreQueuedCompletely) {
  const auto call = CollectiveCall::of("all-gather", "layers.0", "bf16", 4096);
  recorder_.queue(recorder_.ask(members_, call), stream_, [&] {
    stream_.record().wait();
    recorder_.poll_queued();
    EXPECT_EQ(in_progress(), Titles{"1 all-gather of layers.0 along shard"});
  });
  stream_.record().wait();
  recorder_.poll_queued();
  EXPECT_EQ(in_progress(), Titles{});
}

TEST_F(QueuedCollectivesTest, AreForgottenAsOthersAreQueued) {
  pass(*queue("layers.0"));
  const auto before = queue("layers.1");
  before->gate.set_value();
  before->done.wait();
  const auto next = queue("layers.2");  // its queue() polls the one before
  EXPECT_EQ(recorder_.entered(members_->id), 2);
  EXPECT_EQ(in_progress(), Titles{});
  pass(*next);
}

}  // namespace
}  // namespace llamesh::comm
