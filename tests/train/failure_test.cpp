#include "train/records/failure.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "temporary_folder.hpp"
#include "train/records/run_state.hpp"

namespace llamesh::train {
namespace {

using comm::FlightSnapshot;

template <std::size_t n>
void set(std::array<char, n>& field, std::string_view text) {
  text.copy(field.data(), n - 1);
}

constexpr std::uint64_t shard = 7;

/// Returns the record of a rank that has done number - 1 collectives along shard and is in the next
/// one.
FlightSnapshot record_of(int rank, std::int64_t number, const std::string& subject) {
  FlightSnapshot snapshot;
  snapshot.job = 100;
  snapshot.rank = rank;
  snapshot.world_size = 4;
  snapshot.activity = static_cast<std::int32_t>(comm::Activity::training);
  snapshot.step = 14;
  snapshot.alive_at = 5'000'000'000;
  snapshot.stop_signals = 1U << SIGTERM;
  set(snapshot.host, "node" + std::to_string(rank + 1));
  set(snapshot.next_host, "node" + std::to_string(rank + 2));
  for (std::int64_t i = 1; i <= number; ++i) {
    auto& record = snapshot.records[static_cast<std::size_t>(i)];
    record.ticket = record.number = i;
    record.group = shard;
    record.asked = record.started = i;
    record.finished = i < number ? i : 0;
    set(record.axis, "shard");
    set(record.kind, "all-gather");
    set(record.subject, subject);
  }
  return snapshot;
}

std::vector<FlightSnapshot> four_ranks() {
  std::vector<FlightSnapshot> records;
  for (const int rank : {0, 1, 2, 3}) records.push_back(record_of(rank, 17, "layers.3"));
  return records;
}

TEST(FailureOfRecords, NamesTheRankThatNobodyAskedToEnd) {
  auto records = four_ranks();
  records[2].stop_signals = 0;
  records[2].records[17] = {};  // it was computing
  records[0].records[17] = records[1].records[17];
  const auto failure = failure_of_records(records);
  ASSERT_TRUE(failure);
  EXPECT_EQ(
      *failure,
      (Failure{.kind = "killed",
               .rank = 2,
               .host = "node3",
               .phase = "training",
               .step = 14,
               .axis = "shard",
               .collective = "all-gather",
               .unit = "layers.3",
               .waiting = {0, 1, 3},
               .detail = "rank 2 on node3 was killed while training step 14; ranks 0, 1, 3 "
                         "waited in the all-gather of layers.3 along shard (number 17 there)"}));
}

TEST(FailureOfRecords, SaysInWhichCollectiveItWas) {
  auto records = four_ranks();
  records[1].stop_signals = 0;
  const auto failure = failure_of_records(records);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, 1);
  EXPECT_NE(failure->detail.find("training step 14, in the all-gather of layers.3 along shard"),
            std::string::npos)
      << failure->detail;
}

TEST(FailureOfRecords, NamesARankThatWasSeenLastBeforeTheOthers) {
  auto records = four_ranks();
  for (auto& record : records) record.stop_signals = 0;
  records[3].alive_at = 1'000'000'000;
  const auto failure = failure_of_records(records);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, "killed");
  EXPECT_EQ(failure->rank, 3);
}

TEST(FailureOfRecords, NamesTheHostOfARankWithoutARecord) {
  auto records = four_ranks();
  records.erase(records.begin() + 2);
  const auto failure = failure_of_records(records);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, "vanished");
  EXPECT_EQ(failure->rank, 2);
  EXPECT_EQ(failure->host, "node3");
  EXPECT_EQ(failure->waiting, (std::vector{0, 1, 3}));
  EXPECT_EQ(failure->unit, "layers.3");
}

TEST(FailureOfRecords, RepeatsWhatARankHasNotedOfItsEnd) {
  auto records = four_ranks();
  for (auto& record : records) record.end.exit_code = 74;
  records[1].stop_signals = 0;  // by which it would be the one that was killed
  auto& end = records[3].end;
  end.faulty_rank = 3;
  set(end.kind, "error");
  set(end.host, "node4");
  set(end.detail, "cannot write state.h5: No space left on device");
  const auto failure = failure_of_records(records);
  ASSERT_TRUE(failure);
  EXPECT_EQ(*failure, (Failure{.kind = "error",
                               .rank = 3,
                               .host = "node4",
                               .phase = "training",
                               .step = 14,
                               .detail = "cannot write state.h5: No space left on device"}));
}

TEST(FailureOfRecords, BlamesNoNodeWhenOtherRanksOfItLeftARecord) {
  auto records = four_ranks();
  for (auto& record : records) {  // two ranks on each of two hosts
    set(record.host, record.rank < 2 ? "node1" : "node2");
    set(record.next_host, record.rank == 1 || record.rank == 2 ? "node2" : "node1");
  }
  auto some = records;
  some.erase(some.begin());
  const auto failure = failure_of_records(some);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, "unknown");
  EXPECT_EQ(failure->rank, -1);
  EXPECT_EQ(failure->host, "");
  EXPECT_NE(failure->detail.find("why it ended is not known: rank 0 left no record here; "
                                 "rank 1 was training step 14"),
            std::string::npos)
      << failure->detail;
  records.erase(records.begin(), records.begin() + 2);
  EXPECT_EQ(failure_of_records(records)->kind, "vanished");
}

TEST(FailureOfRecords, BlamesNoNodeWhenRanksOfSeveralLeftNone) {
  auto records = four_ranks();
  records.erase(records.begin() + 3);
  records.erase(records.begin() + 1);
  const auto failure = failure_of_records(records);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, "unknown");
  EXPECT_NE(failure->detail.find("ranks 1, 3 left no record here"), std::string::npos);
}

TEST(FailureOfRecords, BlamesNobodyWhenOnlyTheRankThatReportedIsMissing) {
  auto records = four_ranks();
  for (auto& record : records) record.end.exit_code = 74;
  records.erase(records.begin() + 2);
  const auto failure = failure_of_records(records);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, "unknown");
  EXPECT_NE(failure->detail.find("rank 0 was training step 14 and ended with 74 "
                                 "because of another rank"),
            std::string::npos)
      << failure->detail;
}

TEST(FailureOfRecords, DoesNotCountRanksOfOtherGroupsAsWaiting) {
  auto records = four_ranks();
  records[2].stop_signals = 0;
  for (auto& record : records[0].records) record.group = shard + 1;
  const auto failure = failure_of_records(records);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->waiting, (std::vector{1, 3}));
}

TEST(FailureOfRecords, BlamesNobodyWhenAllEndAtOnce) {
  const auto failure = failure_of_records(four_ranks());
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, "ended");
  EXPECT_EQ(failure->rank, -1);
  EXPECT_TRUE(failure->waiting.empty());
}

TEST(FailureOfRecords, AreThoseOfTheNewestStart) {
  auto records = four_ranks();
  records[2].stop_signals = 0;
  auto old = record_of(3, 5, "layers.1");
  old.job = 50;
  old.stop_signals = 0;
  records.insert(records.begin(), old);
  const auto failure = failure_of_records(records);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, 2);
  EXPECT_FALSE(failure_of_records({}));
}

class FailureFile : public testing::Test {
 protected:
  nlohmann::json read() const {
    std::ifstream in(failure_file(folder_.path()));
    return nlohmann::json::parse(in);
  }
  test::TemporaryFolder folder_;
};

TEST_F(FailureFile, HasTheDiagnosisInParts) {
  record_failure(folder_.path(), ExitCode::stopped_early,
                 comm::Diagnosis{.line = "rank 2 on node3 has not come",
                                 .ranks = {2},
                                 .hosts = {"node3"},
                                 .doing = "saving step 20",
                                 .kind = "late",
                                 .activity = comm::Activity::saving,
                                 .step = 20,
                                 .axis = "world",
                                 .collective = "opening",
                                 .unit = "state.h5",
                                 .waiting = {0, 1, 3}});
  auto json = read();
  EXPECT_EQ(json["at"].get<std::string>().size(), std::string("2026-01-01T00:00:00Z").size());
  json.erase("at");
  EXPECT_EQ(json, nlohmann::json::parse(R"({"kind": "late", "rank": 2, "host": "node3",
      "phase": "saving", "step": 20, "axis": "world", "collective": "opening", "unit": "state.h5",
      "waiting": [0, 1, 3], "detail": "rank 2 on node3 has not come"})"));
}

TEST_F(FailureFile, HasNoRankWhereNobodyIsToBlame) {
  write_failure(folder_.path(), {.kind = "ended"});
  EXPECT_TRUE(read()["rank"].is_null());
  EXPECT_EQ(read()["host"], "");
}

TEST_F(FailureFile, HasTheErrorOfARank) {
  record_failure(folder_.path(), ExitCode::io_failure, "the disk is full");
  const auto json = read();
  EXPECT_EQ(json["kind"], "error");
  EXPECT_EQ(json["rank"], 0);
  EXPECT_EQ(json["detail"], "the disk is full");
}

}  // namespace
}  // namespace llamesh::train
