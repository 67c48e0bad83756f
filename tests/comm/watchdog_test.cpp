#include "comm/diagnosis/watchdog.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <future>
#include <optional>
#include <thread>

#include "comm/diagnosis/flight_record.hpp"
#include "comm/diagnosis/hang_diagnosis.hpp"
#include "comm/diagnosis/host_survey.hpp"
#include "comm/diagnosis/in_collective.hpp"
#include "comm/diagnosis/queued_collectives.hpp"
#include "comm/mesh/device_mesh.hpp"
#include "comm/mesh/mpi.hpp"
#include "comm/transports/collectives.hpp"
#include "core/clock.hpp"
#include "core/process.hpp"
#include "support.hpp"

namespace llamesh::comm {
namespace {

using namespace std::chrono_literals;
using test::world;

TEST(LongestReasonable, IsFiveTimesTheMedianAndAMinuteAtLeast) {
  EXPECT_EQ(longest_reasonable({}, 600), 600);
  EXPECT_EQ(longest_reasonable({0.01}, 600), 60);
  EXPECT_EQ(longest_reasonable({20, 30, 1000}, 600), 150);
  EXPECT_EQ(longest_reasonable({0.01}, 600, 300), 300);
  EXPECT_EQ(longest_reasonable({20, 30, 1000}, 600, 100), 150);
}

TEST(WatchdogLimits, AreInProportionToTheSilence) {
  const Watchdog::Limits usual;
  const auto same = Watchdog::Limits::for_silence(30s);
  EXPECT_EQ(same.interval, usual.interval);
  EXPECT_EQ(same.silence, usual.silence);
  EXPECT_EQ(same.silence_at_the_end, usual.silence_at_the_end);
  EXPECT_EQ(same.in_a_collective, usual.in_a_collective);
  EXPECT_EQ(same.answer, usual.answer);
  const auto shorter = Watchdog::Limits::for_silence(3s);
  EXPECT_EQ(shorter.interval, 100ms);
  EXPECT_EQ(shorter.silence, 3s);
  EXPECT_EQ(shorter.silence_at_the_end, 3s);
  EXPECT_EQ(shorter.in_a_collective, 1200ms);
  EXPECT_EQ(shorter.answer, 1s);
  const auto longer = Watchdog::Limits::for_silence(60s);
  EXPECT_EQ(longer.interval, 1s);
  EXPECT_EQ(longer.silence_at_the_end, 4s);
  EXPECT_EQ(longer.in_a_collective, 24s);
  EXPECT_EQ(longer.answer, 20s);
}

TEST(Watchdog, IsSilentWhileAllGoOn) {
  std::string reported;
  {
    Watchdog watchdog(world(), [&](const Diagnosis& verdict) { reported = verdict.line; },
                      {10ms, 5000ms});
    for (int step = 1; step <= 5; ++step) {
      watchdog.begin(Activity::training, step);
      std::this_thread::sleep_for(30ms);
      world().barrier();
    }
  }
  EXPECT_EQ(reported, "");
}

class LongActivity : public testing::Test {
 protected:
  /// Returns the report from a three-second first step with a limit of one second without progress.
  static std::string reported_of_a_first_step(bool progress) {
    std::promise<std::string> alarm;
    auto reported = alarm.get_future();
    Watchdog watchdog(world(), [](const Diagnosis&) {}, {10ms, 60s});
    watchdog.set_alarm([&](const Diagnosis& verdict) { alarm.set_value(verdict.line); });
    watchdog.begin(Activity::training, 1, 1s);
    const auto end = std::chrono::steady_clock::now() + 3s;
    while (std::chrono::steady_clock::now() < end &&
           reported.wait_for(20ms) != std::future_status::ready)
      if (progress) watchdog.progress();
    const bool came = reported.wait_for(0s) == std::future_status::ready;
    world().barrier();
    return came ? reported.get() : "nothing";
  }
};

TEST_F(LongActivity, WithoutProgressIsAHang) {
  const auto line = reported_of_a_first_step(false);
  if (world().size() > 1 && line.empty()) return;  // another rank told us
  EXPECT_NE(line.find("has been training step 1 for 1 s"), std::string::npos) << line;
}

TEST_F(LongActivity, WithProgressMayTakeAsLongAsItTakes) {
  EXPECT_EQ(reported_of_a_first_step(true), "nothing");
}

class SilentRank : public testing::Test {
 protected:
  /// Checks that when rank 0 sends no heartbeat, the rank after it reports that, and the others
  /// hear about it, rank by rank.
  static void expect_alarm(const Watchdog::Limits& limits) {
    if (world().size() == 1) GTEST_SKIP() << "needs another rank";
    const bool silent = world().rank() == 0;
    std::promise<std::string> alarm;
    auto reported = alarm.get_future();
    {
      Watchdog watchdog(
          world(), [&](const Diagnosis& verdict) { alarm.set_value(verdict.line); },
          silent ? Watchdog::Limits{3600s, 3600s} : limits);
      watchdog.begin(Activity::training, 7);
      if (!silent) {
        ASSERT_EQ(reported.wait_for(20s), std::future_status::ready);
        const auto line = reported.get();
        if (world().rank() == 1) {
          EXPECT_NE(line.find("rank 0 on " + this_process().host), std::string::npos) << line;
          EXPECT_NE(line.find("no heartbeat"), std::string::npos) << line;
        } else {
          EXPECT_EQ(line, "");
        }
      }
      world().barrier();
    }
  }
};

TEST_F(SilentRank, IsNamedByTheRankAfterIt) {
  expect_alarm({20ms, 600ms});
}

TEST_F(SilentRank, IsFoundSoonerWhenTheJobIsBeingEnded) {
  expect_alarm({20ms, 3600s, 300ms, [] { return true; }});
}

TEST_F(SilentRank, IsNotTakenForACutLink) {
  const InCollective in(world().members(), "all-gather", "layers.3");
  expect_alarm({.interval = 20ms, .silence = 2500ms, .in_a_collective = 100ms, .answer = 500ms});
}

TEST(CollectivesInProgress, AreInTheOrderOfTheirCalls) {
  const auto before = collectives_entered(world().members()->id);
  const InCollective first(world().members(), "all-gather", "layers.3");
  {
    const InCollective second(world().members(), "barrier", "");
    const auto open = collectives_in_progress();
    ASSERT_EQ(open.size(), 2U);
    EXPECT_EQ(title(open[0].call), "all-gather of layers.3 along world");
    EXPECT_EQ(open[0].call.number, before + 1);
    EXPECT_EQ(title(open[1].call), "barrier along world");
    EXPECT_EQ(open[1].call.number, before + 2);
  }
  EXPECT_EQ(collectives_in_progress().size(), 1U);
  EXPECT_EQ(collectives_entered(world().members()->id), before + 2);
}

TEST(PartOf, IsTheMajorityOrAtATieTheSideWithRank0) {
  EXPECT_EQ(part_of(3, 4, false), Part::majority);
  EXPECT_EQ(part_of(2, 4, true), Part::majority);
  EXPECT_EQ(part_of(2, 4, false), Part::half);
  EXPECT_EQ(part_of(1, 2, true), Part::majority);
  EXPECT_EQ(part_of(1, 2, false), Part::half);
  EXPECT_EQ(part_of(1, 3, true), Part::minority);
  EXPECT_EQ(part_of(2, 5, true), Part::minority);
  EXPECT_EQ(part_of(1, 1, true), Part::majority);
}

/// A fixture with one rank on each of four hosts. Silent ranks neither send nor answer.
class SilentHosts : public testing::Test {
 protected:
  void SetUp() override {
    if (world().size() != 4) GTEST_SKIP() << "needs 4 ranks";
    this_process().host = fmt::format("node{}", world().rank());
  }
  void TearDown() override { this_process().host = host_; }

  inline static const Watchdog::Limits limits{
      .interval = 20ms, .silence = 1500ms, .in_a_collective = 60s, .answer = 400ms};

  /// Returns this rank's report and its delay in seconds; for a silent rank an empty verdict.
  static std::pair<Diagnosis, double> reported(const std::vector<int>& silent_ranks) {
    const bool silent = std::ranges::count(silent_ranks, world().rank()) > 0;
    std::promise<Diagnosis> alarm;
    auto reported = alarm.get_future();
    const auto begin = std::chrono::steady_clock::now();
    Watchdog watchdog(
        world(), [&](const Diagnosis& verdict) { alarm.set_value(verdict); },
        silent ? Watchdog::Limits{3600s, 3600s} : limits);
    watchdog.begin(Activity::training, 14);
    std::pair<Diagnosis, double> result{{}, 0};
    if (!silent && reported.wait_for(20s) == std::future_status::ready)
      result = {reported.get(), to_seconds(std::chrono::steady_clock::now() - begin)};
    world().barrier();
    return result;
  }

 private:
  std::string host_ = this_process().host;
};

TEST_F(SilentHosts, AreNamedByTheMajority) {
  const auto [verdict, seconds] = reported({2});
  if (world().rank() != 3) {
    EXPECT_EQ(verdict.line, "");
    return;
  }
  EXPECT_EQ(verdict.kind, "lost");
  EXPECT_EQ(verdict.ranks, std::vector{2});
  EXPECT_EQ(verdict.hosts, std::vector<std::string>{"node2"});
  EXPECT_FALSE(verdict.of_minority);
  EXPECT_TRUE(verdict.line.ends_with("; node2 answers no other host")) << verdict.line;
}

TEST_F(SilentHosts, AreNotBlamedByAMinority) {
  const auto [verdict, seconds] = reported({0, 1, 2});
  if (world().rank() != 3) return;
  EXPECT_TRUE(verdict.of_minority);
  EXPECT_EQ(verdict.ranks, std::vector<int>{});
  EXPECT_TRUE(verdict.line.starts_with("rank 3 on node3 has heard from 1 of 4 hosts"))
      << verdict.line;
  EXPECT_GE(seconds, 1.75);  // the silence, and the time left to the others
}

TEST_F(SilentHosts, AreNamedAtOnceByTheHalfWithRank0) {
  const auto [verdict, seconds] = reported({2, 3});
  if (world().rank() != 0) return;
  EXPECT_EQ(verdict.ranks, std::vector{3});
  EXPECT_FALSE(verdict.of_minority);
  const auto* const end =
      "; node0 hears from 2 of 4 hosts, its own included: either side may be cut off";
  EXPECT_TRUE(verdict.line.ends_with(end)) << verdict.line;
}

TEST_F(SilentHosts, AreNamedLaterByTheOtherHalf) {
  const auto [verdict, seconds] = reported({0, 1});
  if (world().rank() != 2) return;
  EXPECT_EQ(verdict.ranks, std::vector{1});
  EXPECT_FALSE(verdict.of_minority);
  EXPECT_GE(seconds, 1.75);
}

TEST_F(SilentHosts, AreNotLostIfOthersReachThem) {
  const std::vector<std::string> hosts{"node0", "node1", "node2", "node3"};
  const HostSurvey survey(world(), hosts, limits);
  const int own = world().rank();
  const int other = (own + 3) % 4;
  const HostSurvey::SilentRank suspect{.rank = other, .silent = 2s, .limit = 1500ms};
  const HangDiagnosis::RankStatus mine{.activity = Activity::training, .step = 14};
  HostSurvey::Findings found{.hosts = 4, .reached = 3, .suspect_is_silent = true};
  found.reach_suspect = 2;
  const auto link = survey.verdict(suspect, mine, found);
  ASSERT_TRUE(link);
  EXPECT_EQ(link->kind, "link");
  EXPECT_EQ(link->ranks, (std::vector{std::min(own, other), std::max(own, other)}));
  EXPECT_EQ(link->doing, "training step 14");
  found.reach_suspect = 0;
  EXPECT_EQ(survey.verdict(suspect, mine, found)->ranks, std::vector{other});
}

TEST(Witnesses, AreTheNextRankAndTheFirstBeyondTheHost) {
  const std::vector<std::string> hosts{"a", "a", "b", "b", "c", "c"};
  EXPECT_EQ(witnesses_of(0, hosts), (std::array{1, 2}));
  EXPECT_EQ(witnesses_of(1, hosts), (std::array{2, 2}));
  EXPECT_EQ(witnesses_of(4, hosts), (std::array{5, 0}));
  EXPECT_EQ(witnesses_of(5, hosts), (std::array{0, 0}));
}

TEST(AloneCanReport, IsTrueIfTheOtherHostListensToThisOne) {
  const std::vector<std::string> hosts{"a", "a", "b", "b", "c", "c", "d", "d"};
  EXPECT_TRUE(alone_can_report(6, 0, hosts));  // the last host's leader is not its last rank
  EXPECT_TRUE(alone_can_report(7, 1, hosts));
  EXPECT_FALSE(alone_can_report(0, 6, hosts));
  EXPECT_TRUE(alone_can_report(2, 4, hosts));
  EXPECT_FALSE(alone_can_report(4, 2, hosts));
  EXPECT_FALSE(alone_can_report(2, 6, hosts));
}

TEST(RanksToAsk, AreAsManyAsHostsAndRanksOfTheHost) {
  const std::vector<int> members{1, 2, 3, 5, 6, 7, 8};  // 0 and 4 are in another group
  const std::vector<std::string> hosts{"a", "a", "a", "a", "b", "b", "b", "c", "c"};
  EXPECT_EQ(ranks_to_ask(members, hosts, 1), (std::vector{2, 3, 5, 7}));
  EXPECT_EQ(ranks_to_ask(members, hosts, 2), std::vector{1});
  EXPECT_EQ(ranks_to_ask(members, hosts, 5), (std::vector{1, 6, 7}));
  EXPECT_EQ(ranks_to_ask(members, hosts, 8), std::vector{7});
}

/// A fixture in which all ranks but one wait in a collective.
class HangDiagnosisTest : public testing::Test {
 protected:
  void SetUp() override {
    if (world().size() == 1) GTEST_SKIP() << "needs another rank";
  }

  inline static const Watchdog::Limits limits{
      .interval = 20ms, .silence = 30s, .in_a_collective = 200ms, .answer = 1000ms};
  static int other() { return world().size() / 2; }

  /// Runs a rank that sends heartbeats but answers no question, like one that cannot be reached,
  /// until it receives the alarm.
  static void run_without_answers() {
    constexpr std::int64_t goodbye = -1;
    constexpr std::int64_t alarm = -2;
    const auto group = world().duplicate();
    world().all_gather(this_process().host);
    const auto send = [&](std::int64_t activity) {
      std::array<std::int64_t, 2> heartbeat{activity, 0};
      MPI_Send(heartbeat.data(), 2, MPI_INT64_T, (group.rank() + 1) % group.size(), 0,
               native(group));
    };
    const auto receive = [&] {
      std::array<std::int64_t, 2> heartbeat{};
      MPI_Recv(heartbeat.data(), 2, MPI_INT64_T, (group.rank() + group.size() - 1) % group.size(),
               0, native(group), MPI_STATUS_IGNORE);
      return heartbeat[0];
    };
    do send(0);
    while (receive() != alarm);
    send(alarm);
    for (int i = 0; i < 4; ++i) group.barrier();  // two each for the roll call and the survey
    send(goodbye);
    while (receive() != goodbye) continue;
  }
};

TEST_F(HangDiagnosisTest, NamesBothEndsOfACutLink) {
  const InCollective in(world().members(), "all-gather", "layers.3");
  if (world().rank() == other()) return run_without_answers();
  std::promise<Diagnosis> alarm;
  auto reported = alarm.get_future();
  Watchdog watchdog(
      world(), [&](const Diagnosis& verdict) { alarm.set_value(verdict); }, limits);
  watchdog.begin(Activity::training, 14);
  ASSERT_EQ(reported.wait_for(20s), std::future_status::ready);
  const auto verdict = reported.get();
  if (world().rank() != 0 && verdict.line.empty()) return;  // another rank told us
  EXPECT_EQ(verdict.ranks,
            (std::vector{std::min(world().rank(), other()), std::max(world().rank(), other())}));
  EXPECT_EQ(verdict.hosts, std::vector(2, this_process().host));
  EXPECT_EQ(verdict.doing, "training step 14, in the all-gather of layers.3 along world");
  EXPECT_NE(verdict.line.find("cannot reach each other"), std::string::npos) << verdict.line;
}

class LateRank : public HangDiagnosisTest {
 protected:
  /// The patience for a report that has to come, also on a busy machine, and for one that must not.
  static constexpr std::chrono::seconds comes{40}, stays_away{4};

  /// Returns the report, from a waiting rank or the late one, if there is one within `patience`.
  /// The limit without progress is two seconds for waiting ranks and `limit` for the late one.
  static std::optional<Diagnosis> reported(std::chrono::seconds patience,
                                           std::chrono::seconds limit, bool progress,
                                           int late_rank = other()) {
    const bool late = world().rank() == late_rank;
    std::promise<Diagnosis> alarm;
    auto reported = alarm.get_future();
    auto own_limits = limits;
    if (late) own_limits.interval = 300ms;  // lets the others report
    Watchdog watchdog(
        world(), [&](const Diagnosis& verdict) { alarm.set_value(verdict); }, own_limits);
    std::optional<InCollective> in;
    if (!late) in.emplace(world().members(), "all-gather", "layers.3");
    if (late)
      watchdog.begin(Activity::saving, 20, limit);
    else
      watchdog.begin(Activity::training, 21, 2s);
    const auto end = std::chrono::steady_clock::now() + patience;
    while (std::chrono::steady_clock::now() < end &&
           reported.wait_for(20ms) != std::future_status::ready)
      if (late && progress) watchdog.progress();
    const bool came = reported.wait_for(0s) == std::future_status::ready;
    if (late) in.emplace(world().members(), "all-gather", "layers.3");
    world().barrier();
    return came ? std::optional(reported.get()) : std::nullopt;
  }
};

TEST_F(LateRank, IsNamedByThoseThatWait) {
  const auto verdict = reported(comes, 2s, /*progress=*/false);
  ASSERT_TRUE(verdict);
  if (world().rank() != 0 && verdict->line.empty()) return;
  EXPECT_EQ(verdict->ranks, std::vector{other()});
  EXPECT_EQ(verdict->doing, "saving step 20");
  const auto begin = fmt::format(
      "rank {} on {} has not come to the all-gather of layers.3 along "
      "world for ",
      other(), this_process().host);
  EXPECT_TRUE(verdict->line.starts_with(begin)) << verdict->line;
  EXPECT_TRUE(verdict->line.ends_with(" s: it is saving step 20")) << verdict->line;
}

/// The ranks wait in the collectives themselves: all of them within a node, and between nodes only
/// the one that receives from the late rank.
TEST_F(LateRank, IsNamedInExchangesBetweenPeers) {
  const auto tensor_of = [](const device::Buffer& data, std::int64_t at) {
    return data.tensor(DType::f32, {world().size()}, at);
  };
  const int size = world().size();
  for (const bool send_recv : {false, true}) {
    const int ranks_per_node = send_recv ? 1 : 0;
    DeviceMesh mesh(world(), discover_topology(world(), ranks_per_node),
                    ParallelDims({{"shard", size}}));
    auto& axis = *mesh.axis("shard").collectives;
    const device::Buffer data(256);
    axis.set_subject("layers.3");
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(size), 1);
    const auto exchange = [&] {
      const auto received = tensor_of(data, 0);
      const auto sent = tensor_of(data, 128);
      if (!send_recv) return axis.all_to_all(received, counts, sent, counts, {});
      return axis.send_recv(received, (world().rank() + size - 1) % size, sent,
                            (world().rank() + 1) % size, {});
    };
    const bool late = world().rank() == other();
    std::promise<Diagnosis> alarm;
    auto reported = alarm.get_future();
    auto own_limits = limits;
    if (late) own_limits.interval = 300ms;  // lets the others report
    {
      Watchdog watchdog(
          world(), [&](const Diagnosis& verdict) { alarm.set_value(verdict); }, own_limits);
      const bool waits = !send_recv || (world().rank() + size - 1) % size == other();
      watchdog.begin(late ? Activity::saving : Activity::training, 21, late || waits ? 2s : 600s);
      const auto event = late ? device::Event() : exchange();
      ASSERT_EQ(reported.wait_for(20s), std::future_status::ready);
      world().barrier();  // the late rank joins once all have heard the alarm
      (late ? exchange() : event).wait();
      world().barrier();
    }
    const auto verdict = reported.get();
    if (verdict.line.empty()) continue;  // another rank told us
    EXPECT_EQ(verdict.kind, "late");
    EXPECT_EQ(verdict.ranks, std::vector{other()});
    EXPECT_EQ(verdict.axis, "shard");
    EXPECT_EQ(verdict.collective, send_recv ? "send-recv" : "all-to-all");
    EXPECT_EQ(verdict.unit, "layers.3");
  }
}

/// All hosts have queued the collective, but one rank's GPU hangs in a kernel before it. A worker's
/// stream stands in for the GPU's.
TEST_F(LateRank, IsNamedIfOnlyItsGpuHasNotCome) {
  const bool late = world().rank() == other();
  const auto members = data_plane(*world().members());
  std::promise<void> kernel_ends, collective_ends;
  auto stream = device::Stream::worker();
  std::promise<Diagnosis> alarm;
  auto reported = alarm.get_future();
  auto own_limits = limits;
  if (late) own_limits.interval = 300ms;  // lets the others report
  {
    Watchdog watchdog(
        world(), [&](const Diagnosis& verdict) { alarm.set_value(verdict); }, own_limits);
    watchdog.begin(Activity::training, 21, 2s);
    if (late) stream.run([&] { kernel_ends.get_future().wait(); });
    auto& queued = QueuedCollectives::instance();
    const auto call = CollectiveCall::of("all-gather", "layers.3", "bf16", 4096);
    const auto ticket = FlightRecorder::instance().asked(*members, call);
    const auto number = queued.begin(members, call, ticket, stream.record());
    stream.run([&] { collective_ends.get_future().wait(); });
    queued.end(members->id, number, stream.record());
    EXPECT_EQ(reported.wait_for(comes), std::future_status::ready);
    world().barrier();  // all have heard the alarm
    kernel_ends.set_value();
    collective_ends.set_value();
    stream.record().wait();
    queued.poll();
  }
  const auto verdict = reported.get();
  if (verdict.line.empty()) return;  // another rank told us
  EXPECT_EQ(verdict.kind, "late");
  EXPECT_EQ(verdict.ranks, std::vector{other()});
  EXPECT_EQ(verdict.unit, "layers.3");
  EXPECT_EQ(verdict.doing, "training step 21");
}

TEST_F(LateRank, IsNotNamedWithinItsOwnLimit) {
  EXPECT_FALSE(reported(stays_away, 600s, /*progress=*/false));
}

TEST_F(LateRank, IsNotNamedWhileItMakesProgress) {
  EXPECT_FALSE(reported(stays_away, 1s, /*progress=*/true));
}

/// A fixture with two ranks on each of two hosts; the last one is late, and only rank 2 asks it.
class LateRankOfTwoHosts : public LateRank {
 protected:
  void SetUp() override {
    if (world().size() != 4) GTEST_SKIP() << "needs 4 ranks";
    this_process().host = world().rank() < 2 ? "node1" : "node2";
  }
  void TearDown() override { this_process().host = host_; }

 private:
  std::string host_ = this_process().host;
};

TEST_F(LateRankOfTwoHosts, IsNamedByTheFirstOnItsHost) {
  const auto verdict = reported(comes, 2s, /*progress=*/false, 3);
  ASSERT_TRUE(verdict);
  if (world().rank() != 2) {
    EXPECT_EQ(verdict->line, "");
    return;
  }
  EXPECT_EQ(verdict->ranks, std::vector{3});
  EXPECT_EQ(verdict->hosts, std::vector<std::string>{"node2"});
  EXPECT_EQ(verdict->doing, "saving step 20");
}

TEST_F(LateRankOfTwoHosts, KeepsTheOtherHostWaitingToo) {
  EXPECT_FALSE(reported(stays_away, 600s, /*progress=*/false, 3));
}

}  // namespace
}  // namespace llamesh::comm
