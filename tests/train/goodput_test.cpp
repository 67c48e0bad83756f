#include "train/records/goodput.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "temporary_folder.hpp"

namespace llamesh::train {
namespace {

TEST(Goodput, IsTheShareOfStepsThatCount) {
  EXPECT_FALSE(Goodput().share());
  const Goodput goodput{.productive = 60,
                        .repeated = 10,
                        .saving = 5,
                        .starting = 10,
                        .other = 5,
                        .diagnosing = 30,
                        .waiting = 80};
  EXPECT_DOUBLE_EQ(goodput.whole(), 200);
  EXPECT_DOUBLE_EQ(*goodput.share(), 0.3);
}

TEST(Goodput, ReadsBackAndLeavesOutTheUnknown) {
  const Goodput known{.productive = 1.5, .saving = 0.25, .diagnosing = 30};
  const auto json = nlohmann::json::parse(to_json(known).dump());
  EXPECT_EQ(parse_goodput(json), known);
  EXPECT_FALSE(json.contains("waiting"));
  for (const char* text :
       {"[]", "3", R"({"productive": -1})", R"({"waiting": "long"})", R"({"other": null})"})
    EXPECT_FALSE(parse_goodput(nlohmann::json::parse(text))) << text;
}

TEST(Goodput, ParsesTheTimeOfAState) {
  EXPECT_EQ(parse_utc("1970-01-02T00:00:01Z"), 86401);
  EXPECT_EQ(parse_utc("2026-11-26T05:00:00Z"), 1795669200);
  for (const char* text : {"", "now", "2026-11-26", "2026-11-26T05:00:00Zx"})
    EXPECT_FALSE(parse_utc(text)) << text;
}

TEST(Gap, IsDiagnosingUntilARankIsNamed) {
  const auto after = [](const Gap& gap) {
    Goodput goodput;
    add_gap(goodput, gap);
    return goodput;
  };
  const Gap diagnosis{.same_allocation = true,
                      .has_faulty_rank = true,
                      .last_step = 100,
                      .ended = 130,
                      .launched = 134};
  EXPECT_EQ(after(diagnosis), (Goodput{.starting = 4, .diagnosing = 30}));
  auto queued = diagnosis;
  queued.same_allocation = false;
  EXPECT_EQ(after(queued), Goodput{.diagnosing = 30}) << "the rest is the queue's";
  EXPECT_EQ(after({.same_allocation = true, .last_step = 100, .launched = 110}),
            Goodput{.diagnosing = 10})
      << "killed: nobody said why";
  EXPECT_EQ(after({.last_step = 100, .launched = 110}), Goodput()) << "nobody knows when it ended";
  EXPECT_EQ(after({.same_allocation = true, .last_step = 100, .ended = 101, .launched = 103}),
            Goodput{.starting = 2})
      << "stopped on request";
}

class QueueTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = std::getenv("PATH");
    setenv("PATH", (folder_.path().string() + ":" + path_).c_str(), 1);
    setenv("SLURM_JOB_ID", "17", 1);
  }
  void TearDown() override {
    setenv("PATH", path_.c_str(), 1);
    unsetenv("SLURM_JOB_ID");
  }
  void answer(const std::string& text) {
    const auto program = folder_.path() / "squeue";
    std::ofstream(program) << "#!/bin/sh\n[ \"$SLURM_TIME_FORMAT\" = %s ] && echo '" << text
                           << "'\n";
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  }

  const test::TemporaryFolder folder_;
  std::string path_;
};

TEST_F(QueueTest, LastsFromTheSubmissionOrTheEndOfTheStartBefore) {
  answer("1000 1600");
  EXPECT_EQ(time_in_queue(0), 600);
  EXPECT_EQ(time_in_queue(1500), 100) << "submitted while the run still ran";
  EXPECT_EQ(time_in_queue(1700), 0);
}

TEST_F(QueueTest, IsUnknownWithoutAnAnswer) {
  for (const char* text : {"", "N/A N/A", "1000 N/A", "2026-11-26T05:00:00 2026-11-26T05:10:00"}) {
    answer(text);
    EXPECT_FALSE(time_in_queue(0)) << text;
  }
  unsetenv("SLURM_JOB_ID");
  EXPECT_FALSE(time_in_queue(0));
}

}  // namespace
}  // namespace llamesh::train
