#include "train/setup/walltime.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "patience.hpp"

namespace llamesh::train {
namespace {

using namespace std::chrono_literals;

TEST(ParseTimeLeft, ReadsWhatSqueuePrints) {
  EXPECT_EQ(parse_time_left("0:07\n"), 7s);
  EXPECT_EQ(parse_time_left("59:59"), 59min + 59s);
  EXPECT_EQ(parse_time_left("  2:03:04\n"), 2h + 3min + 4s);
  EXPECT_EQ(parse_time_left("1-00:00:01"), 24h + 1s);
}

TEST(ParseTimeLeft, KnowsNothingOfOtherTexts) {
  for (const char* text : {"", "UNLIMITED\n", "NOT_SET", "INVALID", "7", "1:2:3:4", "1-", "-1:00",
                           "1:xx", "slurm_load_jobs error", "99999999999999999-00:00:00",
                           "104167-00:00:00", "99999999999999999:00:00", "9000000000:00"})
    EXPECT_EQ(parse_time_left(text), std::nullopt) << text;
}

TEST(Walltime, CountsDownBetweenAnswers) {
  Walltime walltime([] { return std::string("10:00\n"); });
  const auto first = walltime.left(test::stretched(60s));
  ASSERT_TRUE(first);
  EXPECT_LE(first->count(), 600);
  EXPECT_GT(first->count(), 0);
  std::this_thread::sleep_for(20ms);
  EXPECT_LT(walltime.left()->count(), first->count());
}

TEST(Walltime, FollowsAChangedLimitAndOutlivesSilence) {
  std::atomic<int> asked = 0;
  Walltime walltime(
      [&] {
        const int n = ++asked;
        return std::string(n == 1 ? "10:00\n" : n < 5 ? "1-00:00:00\n" : "");
      },
      5ms);
  while (asked < 8) std::this_thread::sleep_for(1ms);
  const auto left = walltime.left();
  ASSERT_TRUE(left);
  EXPECT_LE(left->count(), 86400);
  EXPECT_GT(left->count(), 600);
}

TEST(Walltime, AsksWhenItIsToldTo) {
  std::atomic<int> asked = 0;
  Walltime walltime([&] { return std::string(++asked == 1 ? "10:00\n" : "1-00:00:00\n"); });
  ASSERT_TRUE(walltime.left(test::stretched(60s)));
  walltime.ask_again(test::stretched(60s));
  EXPECT_GT(walltime.left()->count(), 600);
  EXPECT_EQ(asked, 2);
  Walltime(Walltime::Ask{}).ask_again(1h);  // there is nobody to ask
}

TEST(Walltime, EndsOnlyWhereSlurmSaysSo) {
  for (const auto& [second, known] : std::vector<std::pair<std::string, bool>>{
           {"UNLIMITED\n", false}, {"NOT_SET\n", true}, {"9:00\n1:00:00\n", true}}) {
    std::atomic<int> asked = 0;
    Walltime walltime([&] { return ++asked == 1 ? std::string("10:00\n") : second; }, 5ms);
    while (asked < 4) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(walltime.left().has_value(), known) << second;
  }
}

TEST(Walltime, IsUnknownWithoutAnAnswer) {
  EXPECT_EQ(Walltime(Walltime::Ask{}).left(1s), std::nullopt);
  Walltime silent([] { return std::string(); });
  EXPECT_EQ(silent.left(5s), std::nullopt);
}

TEST(ParseEndTime, ReadsSecondsSince1970) {
  EXPECT_EQ(parse_end_time("1764125000"), 1764125000s);
  EXPECT_EQ(parse_end_time("1764125000.25"), 1764125000.25s);
  EXPECT_NEAR(parse_end_time("1764125000.123456789").value_or(0s).count(), 1764125000.123, 1e-3);
  EXPECT_EQ(parse_end_time("0"), 0s);
}

TEST(ParseEndTime, KnowsNothingOfOtherTexts) {
  for (const char* text : {"", "-5", "soon", "nan", "inf", "1e9", ".", "12 ", "17:00", "0x10",
                           "1764125000123", "1764125000123456789", "99999999999999999999999"})
    EXPECT_EQ(parse_end_time(text), std::nullopt) << text;
}

TEST(Walltime, IgnoresAnEndTimeThatItCannotRead) {
  for (const char* text : {"9223372036854775807", "1764125000123456789", "tomorrow"}) {
    setenv("LLAMESH_JOB_END_TIME", text, 1);
    EXPECT_EQ(Walltime().left(), std::nullopt) << text;
    setenv("SLURM_JOB_END_TIME", std::to_string(std::time(nullptr) + 600).c_str(), 1);
    const auto left = Walltime().left();
    unsetenv("SLURM_JOB_END_TIME");
    EXPECT_TRUE(left) << text;
  }
  unsetenv("LLAMESH_JOB_END_TIME");
}

TEST(Walltime, IgnoresAnEndTimeOfAnEarlierJob) {
  for (const char* variable : {"LLAMESH_JOB_END_TIME", "SLURM_JOB_END_TIME"})
    for (const char* text : {"0", "1000", "1764125000.5"}) {
      setenv(variable, text, 1);
      EXPECT_EQ(Walltime().left(), std::nullopt) << variable << ' ' << text;
      unsetenv(variable);
    }
}

TEST(Walltime, TakesAJobScriptsEndTime) {
  setenv("LLAMESH_JOB_END_TIME", std::to_string(std::time(nullptr) + 600).c_str(), 1);
  const auto left = Walltime().left();
  unsetenv("LLAMESH_JOB_END_TIME");
  ASSERT_TRUE(left);
  EXPECT_LE(left->count(), 600);
  EXPECT_GT(left->count(), 0);
}

}  // namespace
}  // namespace llamesh::train
