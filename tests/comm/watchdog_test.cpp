#include "comm/diagnosis/watchdog.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <future>
#include <optional>
#include <thread>

#include "comm/calls/flight_record.hpp"
#include "comm/diagnosis/hang_diagnosis.hpp"
#include "comm/diagnosis/host_survey.hpp"
#include "comm/mesh/device_mesh.hpp"
#include "comm/transports/collectives.hpp"
#include "core/clock.hpp"
#include "core/process.hpp"
#include "patience.hpp"
#include "support.hpp"
#include "watchdog_by_hand.hpp"

namespace llamesh::comm {
namespace {

using namespace std::chrono_literals;
using test::never;
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
    Watchdog watchdog(world(), [&](const Diagnosis& diagnosis) { reported = diagnosis.line; },
                      {.interval = 10ms, .silence = never, .in_a_collective = never});
    for (int step = 1; step <= 5; ++step) {
      watchdog.begin(Activity::training, step, never, never);
      std::this_thread::sleep_for(30ms);
      world().barrier();
    }
  }
  EXPECT_EQ(reported, "");
}

class LongActivity : public testing::Test {
 protected:
  /// Returns the report that comes while `step` runs.
  template <class Step>
  static std::optional<std::string> reported_during(const Step& step) {
    std::promise<std::string> alarm;
    auto reported = alarm.get_future();
    {
      Watchdog watchdog(world(), [](const Diagnosis&) {}, {.interval = 10ms, .silence = never});
      watchdog.set_alarm([&](const Diagnosis& diagnosis) { alarm.set_value(diagnosis.line); });
      step(watchdog, reported);
    }
    if (reported.wait_for(0s) != std::future_status::ready) return {};
    return reported.get();
  }
};

TEST_F(LongActivity, WithoutProgressIsAHang) {
  const auto line = reported_during([](Watchdog& watchdog, std::future<std::string>& reported) {
    watchdog.begin(Activity::training, 1, 1s);
    EXPECT_EQ(reported.wait_for(test::stretched(60s)), std::future_status::ready);
    world().barrier();
  });
  ASSERT_TRUE(line);
  if (world().size() > 1 && line->empty()) return;  // another rank reported it
  EXPECT_NE(line->find("has been training step 1 for "), std::string::npos) << *line;
  EXPECT_TRUE(line->ends_with(" s and makes no progress")) << *line;
}

TEST_F(LongActivity, WithProgressMayTakeAsLongAsItTakes) {
  double pause = 0;  // the longest one: above the limit if this thread gets no processor
  const auto line = reported_during([&](Watchdog& watchdog, std::future<std::string>&) {
    const auto begin = std::chrono::steady_clock::now();
    watchdog.begin(Activity::training, 1, 1s);
    for (auto last = begin; last < begin + 2s;) {
      std::this_thread::sleep_for(20ms);
      const auto now = std::chrono::steady_clock::now();
      const bool ends = now > begin + 2s;
      if (ends)
        watchdog.begin(Activity::ending, 1);
      else
        watchdog.progress();
      pause = std::max(pause, seconds_since(last));
      last = now;
    }
  });
  const bool in_time = world().max(pause < 1 ? 0 : 1) == 0;
  EXPECT_TRUE(!line || !in_time) << *line;
}

class SilentRank : public testing::Test {
 protected:
  /// Checks that when rank 0 sends no heartbeat, the rank after it reports that, and the others
  /// hear about it, rank by rank. `limits` are those of rank 1; no other rank can be taken for
  /// silent.
  static void expect_alarm(Watchdog::Limits limits, bool in_a_collective = false) {
    if (world().size() == 1) GTEST_SKIP() << "needs another rank";
    const bool silent = world().rank() == 0;
    if (world().rank() != 1) limits.silence = limits.silence_at_the_end = never;
    if (silent) limits.interval = never;
    std::promise<std::string> alarm;
    auto reported = alarm.get_future();
    {
      Watchdog watchdog(
          world(), [&](const Diagnosis& diagnosis) { alarm.set_value(diagnosis.line); }, limits);
      watchdog.begin(Activity::training, 7);
      world().barrier();
      std::optional<InCollective> in;
      if (in_a_collective) in.emplace(world().members(), "all-gather", "layers.3");
      if (!silent) {
        ASSERT_EQ(reported.wait_for(test::stretched(60s)), std::future_status::ready);
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
  expect_alarm({.interval = 20ms, .silence = 600ms});
}

TEST_F(SilentRank, IsFoundSoonerWhenTheJobIsBeingEnded) {
  expect_alarm({.interval = 20ms, .silence = never, .silence_at_the_end = 300ms, .job_ends = [] {
                  return true;
                }});
}

TEST_F(SilentRank, IsNotTakenForACutLink) {
  expect_alarm({.interval = 20ms, .silence = 1500ms, .in_a_collective = 100ms, .answer = 500ms},
               true);
}

TEST(CollectivesInProgress, AreInTheOrderOfTheirCalls) {
  const auto& recorder = FlightRecorder::instance();
  const auto before = recorder.entered(world().members()->id);
  const InCollective first(world().members(), "all-gather", "layers.3");
  {
    const InCollective second(world().members(), "barrier", "");
    const auto open = recorder.in_progress();
    ASSERT_EQ(open.size(), 2U);
    EXPECT_EQ(title(open[0].call), "all-gather of layers.3 along world");
    EXPECT_EQ(open[0].call.number, before + 1);
    EXPECT_EQ(title(open[1].call), "barrier along world");
    EXPECT_EQ(open[1].call.number, before + 2);
  }
  EXPECT_EQ(recorder.in_progress().size(), 1U);
  EXPECT_EQ(recorder.entered(world().members()->id), before + 2);
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

  inline static const std::vector<std::string> hosts{"node0", "node1", "node2", "node3"};
  inline static const Watchdog::Limits limits{.interval = 20ms, .silence = 1500ms, .answer = 400ms};

  struct Diagnoses {
    std::optional<Diagnosis> at_once, later;  ///< at the limit, and when the others have had time
    HostSurvey::Findings findings;
  };
  /// Returns the diagnoses of the rank after the last silent one, once it has found that so many
  /// hosts answer; nothing on the other ranks.
  static Diagnoses diagnoses(const std::vector<int>& silent_ranks, int reached) {
    const auto group = world().duplicate();
    HostSurvey survey(group, hosts, limits);
    const int suspect = silent_ranks.back();
    const bool silent = std::ranges::count(silent_ranks, world().rank()) > 0;
    const bool asks = world().rank() == (suspect + 1) % 4;
    test::Arrival arrival;
    Diagnoses result;
    if (silent) {
      arrival.come_and_wait();
    } else {
      arrival.poll_until([&] {
        survey.poll(asks ? std::optional(suspect) : std::nullopt);
        if (!asks || result.later) return true;
        result.findings = survey.findings(suspect);
        if (result.findings.reached != reached || !result.findings.suspect_is_silent) return false;
        const auto at = [&](std::chrono::milliseconds silence) {
          return survey.diagnose({.rank = suspect, .silent = silence, .limit = limits.silence}, {},
                                 result.findings);
        };
        result.at_once = at(limits.silence + 1ms);
        result.later = at(limits.silence + 251ms);
        return true;
      });
    }
    survey.shut_down(true);
    return result;
  }

 private:
  std::string host_ = this_process().host;
};

TEST_F(SilentHosts, AreNamedByTheMajority) {
  const auto diagnosis = diagnoses({2}, 3).at_once;
  if (world().rank() != 3) return;
  ASSERT_TRUE(diagnosis);
  EXPECT_EQ(diagnosis->kind, "lost");
  EXPECT_EQ(diagnosis->ranks, std::vector{2});
  EXPECT_EQ(diagnosis->hosts, std::vector<std::string>{"node2"});
  EXPECT_FALSE(diagnosis->of_minority);
  EXPECT_TRUE(diagnosis->line.ends_with("; node2 answers no other host")) << diagnosis->line;
}

TEST_F(SilentHosts, AreNotBlamedByAMinority) {
  const auto [at_once, later, findings] = diagnoses({0, 1, 2}, 1);
  if (world().rank() != 3) return;
  EXPECT_EQ(findings.part, Part::minority);
  EXPECT_FALSE(at_once) << "the others report first";
  ASSERT_TRUE(later);
  EXPECT_TRUE(later->of_minority);
  EXPECT_EQ(later->ranks, std::vector<int>{});
}

TEST_F(SilentHosts, LetAMinorityEndItself) {
  const bool silent = world().rank() != 3;
  auto own_limits = limits;
  if (silent) own_limits.interval = own_limits.silence = never;
  std::promise<Diagnosis> alarm;
  auto reported = alarm.get_future();
  const auto begin = std::chrono::steady_clock::now();
  Watchdog watchdog(
      world(), [&](const Diagnosis& diagnosis) { alarm.set_value(diagnosis); }, own_limits);
  watchdog.begin(Activity::training, 14);
  if (!silent) {
    EXPECT_EQ(reported.wait_for(test::stretched(60s)), std::future_status::ready);
    EXPECT_GE(seconds_since(begin), 1.75);  // the silence, and the time left to the others
    const auto diagnosis = reported.get();
    EXPECT_TRUE(diagnosis.of_minority);
    EXPECT_TRUE(diagnosis.line.starts_with("rank 3 on node3 has heard from 1 of 4 hosts"))
        << diagnosis.line;
  }
  world().barrier();
}

TEST_F(SilentHosts, AreNamedAtOnceByTheHalfWithRank0) {
  const auto diagnosis = diagnoses({2, 3}, 2).at_once;
  if (world().rank() != 0) return;
  ASSERT_TRUE(diagnosis);
  EXPECT_EQ(diagnosis->ranks, std::vector{3});
  EXPECT_FALSE(diagnosis->of_minority);
  const auto* const end =
      "; node0 hears from 2 of 4 hosts, its own included: either side may be cut off";
  EXPECT_TRUE(diagnosis->line.ends_with(end)) << diagnosis->line;
}

TEST_F(SilentHosts, AreNamedLaterByTheOtherHalf) {
  const auto [at_once, later, findings] = diagnoses({0, 1}, 2);
  if (world().rank() != 2) return;
  EXPECT_EQ(findings.part, Part::half);
  EXPECT_FALSE(at_once);
  ASSERT_TRUE(later);
  EXPECT_EQ(later->ranks, std::vector{1});
  EXPECT_FALSE(later->of_minority);
}

TEST_F(SilentHosts, AreNotLostIfOthersReachThem) {
  const HostSurvey survey(world(), hosts, limits);
  const int own = world().rank();
  const int other = (own + 3) % 4;
  const HostSurvey::SilentRank suspect{.rank = other, .silent = 2s, .limit = 1500ms};
  const HangDiagnosis::RankStatus mine{.activity = Activity::training, .step = 14};
  HostSurvey::Findings found{.hosts = 4, .reached = 3, .suspect_is_silent = true};
  found.reach_suspect = 2;
  const auto link = survey.diagnose(suspect, mine, found);
  ASSERT_TRUE(link);
  EXPECT_EQ(link->kind, "link");
  EXPECT_EQ(link->ranks, (std::vector{std::min(own, other), std::max(own, other)}));
  EXPECT_EQ(link->doing, "training step 14");
  found.reach_suspect = 0;
  EXPECT_EQ(survey.diagnose(suspect, mine, found)->ranks, std::vector{other});
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
  static int other() { return world().size() / 2; }
};

TEST_F(HangDiagnosisTest, NamesBothEndsOfACutLink) {
  const int own = world().rank();
  const int previous = (own + world().size() - 1) % world().size();
  std::optional<Diagnosis> diagnosis;
  {
    test::DiagnosisByHand hand(400ms);
    const InCollective in(world().members(), "all-gather", "layers.3");
    // Only the rank after the other one hears that it lives.
    const HangDiagnosis::RankStatus mine{.activity = Activity::training,
                                         .step = 14,
                                         .stalled = 25,
                                         .limit = 600,
                                         .silence = previous == other() ? 0 : test::always_silent};
    if (own == other()) {
      hand.arrival.come_and_wait();
    } else {
      hand.arrival.poll_until([&] {
        hand.diagnosis.poll(mine);
        if (own == 0 && !diagnosis) diagnosis = hand.diagnosis.diagnose();
        return own != 0 || diagnosis;
      });
    }
  }
  if (own != 0) return;
  ASSERT_TRUE(diagnosis);
  EXPECT_EQ(diagnosis->ranks, (std::vector{0, other()}));
  EXPECT_EQ(diagnosis->hosts, std::vector(2, this_process().host));
  EXPECT_EQ(diagnosis->doing, "training step 14, in the all-gather of layers.3 along world");
  EXPECT_NE(diagnosis->line.find("cannot reach each other"), std::string::npos) << diagnosis->line;
}

/// With more ranks, one that gets no processor could be taken for the end of a cut link.
TEST_F(HangDiagnosisTest, ACutLinkBetweenTwoRanksRaisesTheAlarm) {
  if (world().size() != 2) GTEST_SKIP() << "needs 2 ranks";
  const InCollective in(world().members(), "all-gather", "layers.3");
  if (world().rank() == 1) return test::WatchdogByHand().only_live();
  std::promise<Diagnosis> alarm;
  auto reported = alarm.get_future();
  Watchdog watchdog(
      world(), [&](const Diagnosis& diagnosis) { alarm.set_value(diagnosis); },
      {.interval = 20ms, .silence = never, .in_a_collective = 200ms, .answer = 500ms});
  watchdog.begin(Activity::training, 14, never);
  ASSERT_EQ(reported.wait_for(test::stretched(60s)), std::future_status::ready);
  EXPECT_EQ(reported.get().kind, "link");
}

class LateRank : public HangDiagnosisTest {
 protected:
  using Status = HangDiagnosis::RankStatus;
  inline static const Status saving_too_long{Activity::saving, 20, 61, 60, test::always_silent};
  inline static const Status saving{Activity::saving, 20, 61, 600, test::always_silent};
  inline static const Status training{Activity::training, 21, 61, 600, test::always_silent};
  /// For ranks that wait: they have time until they hear from the late one.
  inline static const Watchdog::Limits limits{
      .interval = 20ms, .silence = never, .in_a_collective = 200ms, .answer = 5000ms};

  /// All ranks count their collectives.
  static void come() { const InCollective in(world().members(), "all-gather", "layers.3"); }

  /// Returns what this rank finds: for `finder` the diagnosis of the late rank, for the others
  /// nothing.
  static std::optional<Diagnosis> found_by(int finder, int late) {
    std::optional<Diagnosis> diagnosis;
    test::DiagnosisByHand hand(400ms);
    std::optional<InCollective> in;
    if (world().rank() != late) in.emplace(world().members(), "all-gather", "layers.3");
    hand.arrival.poll_until([&] {
      hand.diagnosis.poll(world().rank() == late ? saving_too_long : training);
      if (!diagnosis) diagnosis = hand.diagnosis.diagnose();
      return world().rank() != finder || diagnosis;
    });
    if (world().rank() == late) come();
    return diagnosis;
  }
  static void expect_late(const Diagnosis& diagnosis, int late) {
    EXPECT_EQ(diagnosis.kind, "late");
    EXPECT_EQ(diagnosis.ranks, std::vector{late});
    EXPECT_EQ(diagnosis.hosts, std::vector{this_process().host});
    EXPECT_EQ(diagnosis.doing, "saving step 20");
    const auto begin =
        fmt::format("rank {} on {} has not come to the all-gather of layers.3 along world for ",
                    late, this_process().host);
    EXPECT_TRUE(diagnosis.line.starts_with(begin)) << diagnosis.line;
    EXPECT_TRUE(diagnosis.line.ends_with(" s: it is saving step 20")) << diagnosis.line;
  }

  /// Checks that all ranks find that they wait for a late rank within its limit, and name nobody.
  static void expect_patience(int late) {
    test::DiagnosisByHand hand(200ms);
    std::optional<InCollective> in;
    if (world().rank() != late) in.emplace(world().members(), "all-gather", "layers.3");
    hand.arrival.poll_until([&] {
      hand.diagnosis.poll(world().rank() == late ? saving : training);
      EXPECT_FALSE(hand.diagnosis.diagnose());
      return world().rank() == late || hand.diagnosis.waits_for_another();
    });
    if (world().rank() == late) come();
  }
};

TEST_F(LateRank, IsNamedByTheFirstOfItsHost) {
  const auto diagnosis = found_by(0, other());
  EXPECT_EQ(diagnosis.has_value(), world().rank() == 0);
  if (diagnosis) expect_late(*diagnosis, other());
}

TEST_F(LateRank, RaisesTheAlarm) {
  if (world().rank() == other()) {
    test::WatchdogByHand().answer(saving_too_long);
    return come();
  }
  std::promise<Diagnosis> alarm;
  auto reported = alarm.get_future();
  Watchdog watchdog(
      world(), [&](const Diagnosis& diagnosis) { alarm.set_value(diagnosis); }, limits);
  watchdog.begin(Activity::training, 21, never);
  const InCollective in(world().members(), "all-gather", "layers.3");
  ASSERT_EQ(reported.wait_for(test::stretched(60s)), std::future_status::ready);
  const auto diagnosis = reported.get();
  if (world().rank() == 0)
    expect_late(diagnosis, other());
  else
    EXPECT_EQ(diagnosis.line, "");
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
    if (world().rank() == other()) {
      test::WatchdogByHand watchdog;
      watchdog.answer(saving_too_long);
      world().barrier();  // this rank joins once all have heard the alarm
      exchange().wait();
      world().barrier();
      continue;
    }
    std::promise<Diagnosis> alarm;
    auto reported = alarm.get_future();
    {
      Watchdog watchdog(
          world(), [&](const Diagnosis& diagnosis) { alarm.set_value(diagnosis); }, limits);
      watchdog.begin(Activity::training, 21, never);
      const auto event = exchange();
      ASSERT_EQ(reported.wait_for(test::stretched(60s)), std::future_status::ready);
      world().barrier();
      event.wait();
      world().barrier();
    }
    const auto diagnosis = reported.get();
    if (diagnosis.line.empty()) continue;  // another rank reported it
    EXPECT_EQ(diagnosis.kind, "late");
    EXPECT_EQ(diagnosis.ranks, std::vector{other()});
    EXPECT_EQ(diagnosis.axis, "shard");
    EXPECT_EQ(diagnosis.collective, send_recv ? "send-recv" : "all-to-all");
    EXPECT_EQ(diagnosis.unit, "layers.3");
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
  {
    std::optional<Watchdog> watchdog;
    std::optional<test::WatchdogByHand> by_hand;
    if (late)
      by_hand.emplace();
    else
      watchdog.emplace(
          world(), [&](const Diagnosis& diagnosis) { alarm.set_value(diagnosis); }, limits);
    if (watchdog) watchdog->begin(Activity::training, 21, never);
    if (late) stream.run([&] { kernel_ends.get_future().wait(); });
    auto& recorder = FlightRecorder::instance();
    const auto call = CollectiveCall::of("all-gather", "layers.3", "bf16", 4096);
    recorder.queue(recorder.ask(members, call), stream,
                   [&] { stream.run([&] { collective_ends.get_future().wait(); }); });
    if (late)
      by_hand->answer({Activity::training, 21, 61, 60, test::always_silent});
    else
      EXPECT_EQ(reported.wait_for(test::stretched(60s)), std::future_status::ready);
    world().barrier();  // all have heard the alarm
    kernel_ends.set_value();
    collective_ends.set_value();
    stream.record().wait();
    recorder.poll_queued();
  }
  if (late) return;
  const auto diagnosis = reported.get();
  if (diagnosis.line.empty()) return;  // another rank reported it
  EXPECT_EQ(diagnosis.kind, "late");
  EXPECT_EQ(diagnosis.ranks, std::vector{other()});
  EXPECT_EQ(diagnosis.unit, "layers.3");
  EXPECT_EQ(diagnosis.doing, "training step 21");
}

TEST_F(LateRank, IsNotNamedWithinItsOwnLimit) {
  expect_patience(other());
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
  const auto diagnosis = found_by(2, 3);
  EXPECT_EQ(diagnosis.has_value(), world().rank() == 2);
  if (diagnosis) expect_late(*diagnosis, 3);
}

TEST_F(LateRankOfTwoHosts, KeepsTheOtherHostWaitingToo) {
  expect_patience(3);
}

}  // namespace
}  // namespace llamesh::comm
