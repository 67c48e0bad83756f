#include "train/records/metrics.hpp"
#include "train/records/run_metrics.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <bit>
#include <cmath>
#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "core/process.hpp"
#include "runs/small_run.hpp"

namespace llamesh::train {
namespace {

StepRecord record_of(std::int64_t step) {
  StepRecord record;
  record.step = step;
  return record;
}

class Metrics : public testing::Test {
 protected:
  std::vector<std::string> lines() const {
    std::ifstream in(path_);
    std::vector<std::string> all;
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  }
  void write_raw(const std::string& text) const { std::ofstream(path_) << text; }

 private:
  test::TemporaryFolder folder_;

 protected:
  std::filesystem::path path_ = folder_.path() / "metrics.jsonl";
};

void expect_same_bits(const nlohmann::json& number, double expected) {
  EXPECT_EQ(std::bit_cast<std::uint64_t>(number.get<double>()),
            std::bit_cast<std::uint64_t>(expected))
      << number << " was " << expected;
}

TEST_F(Metrics, HoldTheBalanceOfExperts) {
  auto record = record_of(1);
  const ExpertLoads loads{.max_load = 1.5, .min_load = 0.25, .entropy = 0.75, .aux_loss = 2.125};
  record.experts = ExpertBalance{.all = loads};
  const nlohmann::json total{
      {"max_load", 1.5}, {"min_load", 0.25}, {"entropy", 0.75}, {"aux_loss", 2.125}};
  MetricsFile file(path_, 0);
  file.write(record);
  record.experts->z_loss = 3.5;
  record.experts->layers = {{1, loads}, {11, loads}};
  file.write(record);
  EXPECT_EQ(nlohmann::json::parse(lines().at(0)).at("experts"), total);
  auto more = total;
  more["z_loss"] = 3.5;
  more["layers"] = {{"1", total}, {"11", total}};
  EXPECT_EQ(nlohmann::json::parse(lines().at(1)).at("experts"), more);
  EXPECT_EQ(log_fields(record, 10).back(), "expert load 0.25 to 1.50, aux loss 2.1250");
  EXPECT_EQ(log_fields(record, 10).size(), log_fields(record_of(1), 10).size() + 1);
}

TEST_F(Metrics, WithoutMeasuredWaitsHaveNoFieldsOfThem) {
  MetricsFile(path_, 0).write(record_of(1));
  const auto j = nlohmann::json::parse(lines().at(0));
  EXPECT_FALSE(j.contains("exposed"));
  EXPECT_FALSE(j.contains("seconds_compute"));
  EXPECT_FALSE(j.contains("mfu"));
  EXPECT_FALSE(j.contains("joules"));
  EXPECT_FALSE(j.contains("tokens_per_joule"));
}

TEST_F(Metrics, ReadBackAsTheSameBits) {
  std::mt19937_64 random(11);
  std::vector<double> numbers{0.0,
                              -0.0,
                              5e-324,
                              1e-310,
                              std::numeric_limits<double>::max(),
                              std::nextafter(1.0, 2.0),
                              9007199254740993.0};
  while (numbers.size() < 500) {
    const auto number = std::bit_cast<double>(random());
    if (std::isfinite(number)) numbers.push_back(number);
  }
  MetricsFile file(path_, 0);
  for (const double number : numbers) {
    StepRecord record;
    record.loss = number;
    record.lr = -number;
    file.write(record);
  }
  const auto seen = lines();
  ASSERT_EQ(seen.size(), numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto j = nlohmann::json::parse(seen[i]);
    expect_same_bits(j.at("loss"), numbers[i]);
    expect_same_bits(j.at("lr"), -numbers[i]);
  }
}

TEST_F(Metrics, AreThereAtOnce) {
  MetricsFile file(path_, 0);
  file.write(record_of(1));
  EXPECT_EQ(lines().size(), 1U) << "before the file is closed";
}

TEST_F(Metrics, GoOnBehindWholeLines) {
  write_raw("{\"step\": 1}\n");
  MetricsFile(path_, 1).write(record_of(2));
  MetricsFile(path_, 2).write(record_of(3));
  ASSERT_EQ(lines().size(), 3U);
  EXPECT_EQ(nlohmann::json::parse(lines()[0]).at("step"), 1);
  EXPECT_EQ(nlohmann::json::parse(lines()[1]).at("step"), 2);
  EXPECT_EQ(nlohmann::json::parse(lines()[2]).at("step"), 3);
}

TEST_F(Metrics, LoseATornLastLine) {
  write_raw("{\"step\": 1}\n{\"step\": 2, \"lo");
  MetricsFile(path_, 1).write(record_of(2));
  ASSERT_EQ(lines().size(), 2U);
  EXPECT_EQ(lines()[0], "{\"step\": 1}");
  EXPECT_EQ(nlohmann::json::parse(lines()[1]).at("step"), 2);
}

TEST_F(Metrics, LoseLinesWithZerosWherePowerWasLost) {
  using namespace std::string_literals;
  write_raw("{\"step\":1}\n{\"step\":\0\0\0\0{\"step\":1}\n{\"step\":2}\n"s);
  { const MetricsFile file(path_, 2); }
  EXPECT_EQ(lines(), (std::vector<std::string>{"{\"step\":1}", "{\"step\":2}"}));
}

TEST_F(Metrics, LoseWhatAKilledStartHasLeftBehindTheStepThatTheRunGoesOnAfter) {
  std::string kept = "{\"event\":\"resume\",\"step\":0,\"detail\":\"\\\"step\\\":9\"}\n";
  kept += "not ours, but a line\n";
  std::string all = kept;
  for (int step = 1; step <= 6; ++step) {
    const auto line = fmt::format("{{\"step\":{},\"loss\":{}}}\n", step, step);
    all += line;
    if (step <= 4) kept += line;
    // An asynchronous save at step 4 has ended after step 5.
    const std::string saved = "{\"event\":\"checkpoint\",\"step\":4}\n";
    if (step == 5) all += saved + "{\"event\":\"validation\",\"step\":5,\"loss\":2}\n";
    if (step == 5) kept += saved;
  }
  write_raw(all);
  const auto text = [&] {
    std::string joined;
    for (const auto& line : lines()) joined += line + "\n";
    return joined;
  };
  { const MetricsFile whole(path_, 6); }
  EXPECT_EQ(text(), all);
  { const MetricsFile cut(path_, 4); }
  EXPECT_EQ(text(), kept);
  { const MetricsFile anew(path_, 0); }
  EXPECT_EQ(lines().size(), 2U);
}

TEST_F(Metrics, AreNotAddedToWhatIsNotTheirs) {
  for (const std::string other : {"my notes\n", "{\"text\": \"a\"}\n", "\n",
                                  "\x7f"
                                  "ELF"}) {
    write_raw(other);
    MetricsFile(path_, 0).write(record_of(1));
    EXPECT_EQ(lines().size(), 1U);
    const auto quarantined = path_.string() + ".quarantined-1";
    EXPECT_EQ(read_file(quarantined, 100), other);
    std::filesystem::remove(quarantined);
  }
}

TEST_F(Metrics, StartInAnEmptyFile) {
  write_raw("");
  MetricsFile(path_, 0).write(record_of(1));
  EXPECT_EQ(lines().size(), 1U);
}

TEST_F(Metrics, HaveEvents) {
  MetricsFile file(path_, 0);
  file.write_validation({.step = 30, .loss = 1.0 / 7});
  file.write_event("resumed", 31, "from \"step_31\"\n");
  ASSERT_EQ(lines().size(), 2U);
  const auto validation = nlohmann::json::parse(lines()[0]);
  EXPECT_EQ(validation.at("event"), "validation");
  EXPECT_EQ(validation.at("step"), 30);
  expect_same_bits(validation.at("loss"), 1.0 / 7);
  const auto resumed = nlohmann::json::parse(lines()[1]);
  EXPECT_EQ(resumed.at("event"), "resumed");
  EXPECT_EQ(resumed.at("step"), 31);
  EXPECT_EQ(resumed.at("detail"), "from \"step_31\"\n");
}

TEST_F(Metrics, SayWhereAndHowARunStarted) {
  MetricsFile file(path_, 0);
  file.write_start("resume", 5, "replicate=2", "replicate=2 x shard=3");
  file.write_startup(6, {{"launch", 0.25}, {"MPI_Init", 1.5}});
  ASSERT_EQ(lines().size(), 2U);
  const auto start = nlohmann::json::parse(lines()[0]);
  EXPECT_EQ(start.at("ranks"), this_process().world_size);
  EXPECT_EQ(start.at("mesh"), "replicate=2 x shard=3");
  EXPECT_EQ(start.at("host"), this_process().host);
  EXPECT_EQ(start.at("version"), version());
  EXPECT_NE(start.at("command").get<std::string>().find("metrics_test.cpp"), std::string::npos);
  if (start.contains("commit")) {  // not if it was built outside git
    EXPECT_EQ(start.at("commit"), commit());
  }
  EXPECT_GT(start.at("time"), 1.7e9);
  EXPECT_EQ(lines()[1], R"({"event":"startup","step":6,"phases":{"launch":0.25,"MPI_Init":1.5}})");
}

TEST_F(Metrics, TakeTextsOfAnyBytes) {
  MetricsFile file(path_, 0);
  const std::vector<SampleText> samples{{"say \"hi\"", "line\nand \xff"}, {"", ""}};
  file.write_samples(5, samples);
  RunMetrics run;
  ASSERT_TRUE(add_line(lines()[0], run));
  ASSERT_EQ(run.samples.at(5).size(), 2U);
  EXPECT_EQ(run.samples.at(5)[0].prompt, samples[0].prompt);
  EXPECT_EQ(run.samples.at(5)[0].text, "line\nand \uFFFD");
  // Resumed before them, the run has none; a line with anything else does no harm.
  for (const char* line :
       {R"({"event":"resume","step":4})", R"({"event":"samples","step":6,"texts":[1,{"text":2}]})",
        R"({"event":"samples","step":7,"texts":{}})"})
    EXPECT_TRUE(add_line(line, run));
  EXPECT_FALSE(run.samples.contains(5));
  EXPECT_FALSE(run.samples.contains(7));
}

template <class Action>
void expect_io_failure(Action action, const std::string& part) {
  try {
    action();
    ADD_FAILURE() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::io_failure);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST_F(Metrics, FailWhereTheyCannotBeWritten) {
  const auto missing = path_ / "deeper" / "metrics.jsonl";
  expect_io_failure([&] { MetricsFile file(missing, 0); }, missing.string());
  MetricsFile file(path_, 0);
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small{10, limit.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  expect_io_failure([&] { file.write(record_of(1)); }, "File too large");
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, before);
}

TEST(Fields, ShowNoSignOfANan) {
  StepRecord record = record_of(9);
  record.loss = -std::numeric_limits<double>::quiet_NaN();
  record.grad_norm = record.loss;
  EXPECT_TRUE(std::signbit(record.loss));
  EXPECT_EQ(log_fields(record, 1000).at(1), "loss nan");
  EXPECT_EQ(log_fields(record, 1000).at(4), "grad norm nan");
}

TEST(Fields, SayWhatPeopleLookForFirstThingsFirst) {
  StepRecord record = record_of(9);
  record.loss = 2.34567;
  record.grad_norm = 1.5;
  record.lr = 3e-4;
  record.tokens_per_second = 12345;
  record.mfu = 0.42;
  record.allocated_after_step = 3 << 20;
  record.peak = 5 << 20;
  const std::vector<std::string> expected{"step    9/1000",    "loss 2.3457",     "12345 tokens/s",
                                          "MFU 42 %",          "grad norm 1.500", "lr 3.00e-04",
                                          "memory 3.0/5.0 MiB"};
  EXPECT_EQ(log_fields(record, 1000), expected);
  record.mfu = {};
  EXPECT_EQ(log_fields(record, 1000).at(3), "MFU -");
}

}  // namespace
}  // namespace llamesh::train
