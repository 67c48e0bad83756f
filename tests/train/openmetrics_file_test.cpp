#include "train/openmetrics/openmetrics_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "core/error.hpp"
#include "source_file.hpp"
#include "temporary_folder.hpp"

namespace llamesh::train {
namespace {

/// Metrics of a text by name and labels ("llamesh_loss{run=\"a\"}").
using Samples = std::map<std::string, std::string>;

/// Parses the text as strictly as OpenMetrics 1.0 and Prometheus' text format 0.0.4 together: one
/// HELP and one TYPE above a family's samples, which follow each other, none twice, a counter's
/// with the suffix _total, known types, no timestamps, and # EOF at the end.
Samples parse_exposition(const std::string& text) {
  static const std::regex help("# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) ([^\\\\\n]|\\\\\\\\|\\\\n)*");
  static const std::regex type("# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (gauge|counter)");
  static const std::string label = "[a-zA-Z_][a-zA-Z0-9_]*=\"(?:[^\"\\\\]|\\\\[\\\\\"n])*\"";
  static const std::regex sample("([a-zA-Z_:][a-zA-Z0-9_:]*)(\\{" + label + "(?:," + label +
                                 ")*\\}) (NaN|[+-]Inf|[+-]?[0-9]+(?:\\.[0-9]+)?(?:e[+-]?[0-9]+)?)");
  constexpr std::string_view end = "\n# EOF\n";
  EXPECT_TRUE(text.ends_with(end));
  Samples samples;
  std::set<std::string> ended;
  std::string current, typed;
  std::istringstream lines(text.substr(0, text.size() - end.size() + 1));
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, help)) {
      if (!current.empty()) ended.insert(current);
      current = match[1];
      EXPECT_FALSE(ended.contains(current)) << "a second HELP: " << line;
      typed.clear();
    } else if (std::regex_match(line, match, type)) {
      EXPECT_EQ(match[1], current) << "no HELP above: " << line;
      EXPECT_TRUE(typed.empty()) << "a second TYPE: " << line;
      typed = match[2];
    } else if (std::regex_match(line, match, sample)) {
      EXPECT_EQ(match[1], current + (typed == "counter" ? "_total" : "")) << line;
      EXPECT_FALSE(typed.empty()) << "no TYPE above: " << line;
      const auto name = match[1].str() + match[2].str();
      EXPECT_TRUE(samples.emplace(name, match[3]).second) << "twice: " << line;
    } else {
      ADD_FAILURE() << "not in the grammar: " << line;
    }
  }
  return samples;
}

StepRecord some_step() {
  StepRecord record;
  record.step = 7;
  record.loss = 2.5;
  record.grad_norm = 1e-30;
  record.lr = 1e-4;
  record.tokens = 123456789012345;
  record.seconds = 2;
  record.tokens_per_second = 1000;
  record.mfu = 0.5;
  record.peak = 1 << 20;
  record.exposed = {{"shard", 0.5}, {"replicate", 0.25}};
  record.joules = 400;
  record.tokens_per_joule = 5;
  return record;
}

RunGauges some_run() {
  return {.run = "tiny",
          .step = 7,
          .steps = 10,
          .checkpoint_step = 5,
          .checkpoint_time = 1.7e9,
          .memory_step = 6,
          .validation_losses = {{"validation", 3}},
          .joules = 7.2e6,
          .goodput = {.productive = 60, .saving = 20, .waiting = 20}};
}

std::string content_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(OpenMetrics, IsInBothFormats) {
  const auto record = some_step();
  const auto samples = parse_exposition(to_openmetrics(some_run(), &record));
  EXPECT_EQ(samples.at("llamesh_step{run=\"tiny\"}"), "7");
  EXPECT_EQ(samples.at("llamesh_steps{run=\"tiny\"}"), "10");
  EXPECT_EQ(samples.at("llamesh_loss{run=\"tiny\"}"), "2.5");
  EXPECT_EQ(samples.at("llamesh_tokens_total{run=\"tiny\"}"), "123456789012345");
  EXPECT_EQ(samples.at("llamesh_tokens_per_second{run=\"tiny\"}"), "1000");
  EXPECT_EQ(samples.at("llamesh_exposed_ratio{run=\"tiny\",axis=\"shard\"}"), "0.25");
  EXPECT_EQ(samples.at("llamesh_exposed_ratio{run=\"tiny\",axis=\"replicate\"}"), "0.125");
  EXPECT_EQ(samples.at("llamesh_checkpoint_step{run=\"tiny\"}"), "5");
  EXPECT_EQ(samples.at("llamesh_checkpoint_timestamp_seconds{run=\"tiny\"}"), "1700000000");
  EXPECT_EQ(samples.at("llamesh_memory_checkpoint_step{run=\"tiny\"}"), "6");
  EXPECT_EQ(samples.at("llamesh_running{run=\"tiny\"}"), "1");
  EXPECT_EQ(samples.at("llamesh_energy_joules_total{run=\"tiny\"}"), "7200000");
  EXPECT_EQ(samples.at("llamesh_goodput_ratio{run=\"tiny\"}"), "0.6");
  EXPECT_EQ(samples.at("llamesh_time_seconds{run=\"tiny\",part=\"saving\"}"), "20");
  EXPECT_EQ(samples.at("llamesh_time_seconds{run=\"tiny\",part=\"waiting\"}"), "20");
  EXPECT_EQ(samples.at("llamesh_step_joules{run=\"tiny\"}"), "400");
  EXPECT_EQ(samples.at("llamesh_tokens_per_joule{run=\"tiny\"}"), "5");
}

TEST(OpenMetrics, HasAStepsMetricsInThisOrder) {
  const auto record = some_step();
  const auto text = to_openmetrics({.run = "tiny"}, &record);
  EXPECT_EQ(text.substr(text.find("# HELP llamesh_loss")),
            R"(# HELP llamesh_loss Loss of the latest step, nats per token.
# TYPE llamesh_loss gauge
llamesh_loss{run="tiny"} 2.5
# HELP llamesh_grad_norm Gradient norm before clipping.
# TYPE llamesh_grad_norm gauge
llamesh_grad_norm{run="tiny"} 1e-30
# HELP llamesh_learning_rate Learning rate.
# TYPE llamesh_learning_rate gauge
llamesh_learning_rate{run="tiny"} 0.0001
# HELP llamesh_tokens Tokens trained on since the start of the run.
# TYPE llamesh_tokens counter
llamesh_tokens_total{run="tiny"} 123456789012345
# HELP llamesh_tokens_per_second Training speed over all ranks.
# TYPE llamesh_tokens_per_second gauge
llamesh_tokens_per_second{run="tiny"} 1000
# HELP llamesh_step_seconds Duration of the latest step.
# TYPE llamesh_step_seconds gauge
llamesh_step_seconds{run="tiny"} 2
# HELP llamesh_mfu_ratio Model FLOPs utilization, 0 to 1.
# TYPE llamesh_mfu_ratio gauge
llamesh_mfu_ratio{run="tiny"} 0.5
# HELP llamesh_memory_peak_bytes Peak memory of the rank that uses most.
# TYPE llamesh_memory_peak_bytes gauge
llamesh_memory_peak_bytes{run="tiny"} 1048576
# HELP llamesh_step_joules Energy since the previous step.
# TYPE llamesh_step_joules gauge
llamesh_step_joules{run="tiny"} 400
# HELP llamesh_tokens_per_joule Tokens of the latest step per joule.
# TYPE llamesh_tokens_per_joule gauge
llamesh_tokens_per_joule{run="tiny"} 5
# HELP llamesh_exposed_ratio Share of the step in which ranks waited for communication along an )"
            R"(axis, 0 to 1.
# TYPE llamesh_exposed_ratio gauge
llamesh_exposed_ratio{run="tiny",axis="replicate"} 0.125
llamesh_exposed_ratio{run="tiny",axis="shard"} 0.25
# EOF
)");
}

TEST(OpenMetrics, HasNoLineForWhatIsUnknown) {
  const auto text = to_openmetrics({.run = "tiny", .steps = 10}, nullptr);
  const auto samples = parse_exposition(text);
  EXPECT_EQ(samples.at("llamesh_step{run=\"tiny\"}"), "0");
  for (const char* name : {"loss", "tokens", "exposed", "checkpoint_timestamp", "memory_checkpoint",
                           "validation", "energy", "goodput", "time_seconds"})
    EXPECT_EQ(text.find("llamesh_" + std::string(name)), text.npos) << name;
  auto gpu = some_step();  // no times of axes
  gpu.exposed.clear();
  EXPECT_EQ(to_openmetrics(some_run(), &gpu).find("exposed"), text.npos);
}

TEST(OpenMetrics, EscapesLabelsAndWritesAllNumbers) {
  auto record = some_step();
  record.loss = std::numeric_limits<double>::quiet_NaN();
  record.grad_norm = std::numeric_limits<double>::infinity();
  auto run = some_run();
  run.run = "a\"b\\c\nd";
  const auto samples = parse_exposition(to_openmetrics(run, &record));
  EXPECT_EQ(samples.at("llamesh_loss{run=\"a\\\"b\\\\c\\nd\"}"), "NaN");
  EXPECT_EQ(samples.at("llamesh_grad_norm{run=\"a\\\"b\\\\c\\nd\"}"), "+Inf");
}

TEST(OpenMetricsFile, IsReplacedWholeAndReadableByAll) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "llamesh.prom";
  OpenMetricsFile file(path, some_run());
  EXPECT_EQ(parse_exposition(content_of(path)).count("llamesh_loss{run=\"tiny\"}"), 0U);
  std::ifstream reader(path);  // keeps what it has opened
  const auto record = some_step();
  file.write(some_run(), &record);
  const std::string before{std::istreambuf_iterator<char>(reader), {}};
  EXPECT_EQ(parse_exposition(before).count("llamesh_loss{run=\"tiny\"}"), 0U);
  EXPECT_EQ(parse_exposition(content_of(path)).at("llamesh_loss{run=\"tiny\"}"), "2.5");
  struct stat status {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0644U);
  const auto entries = std::filesystem::directory_iterator(folder.path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1) << "a temporary file is left";
}

TEST(OpenMetricsFile, FailsWhereItCannotBeWritten) {
  const test::TemporaryFolder folder;
  try {
    const OpenMetricsFile file(folder.path() / "absent" / "llamesh.prom", some_run());
    ADD_FAILURE() << "written into a folder that does not exist";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::io_failure) << error.what();
  }
}

/// Names in the dashboard's queries.
std::set<std::string> names_in(const std::string& text) {
  static const std::regex name("llamesh_[a-z_]+");
  return {std::sregex_token_iterator(text.begin(), text.end(), name), {}};
}

TEST(Dashboard, ShowsEachMetricAndNoOther) {
  const auto dashboard = nlohmann::json::parse(content_of(test::source_file("docs/grafana.json")));
  std::set<std::string> shown, written;
  for (const auto& panel : dashboard.at("panels"))
    for (const auto& target : panel.at("targets"))
      shown.merge(names_in(target.at("expr").get<std::string>()));
  const auto variables = names_in(dashboard.at("templating").dump());
  shown.insert(variables.begin(), variables.end());
  const auto record = some_step();
  for (const auto& [name, value] : parse_exposition(to_openmetrics(some_run(), &record)))
    written.insert(name.substr(0, name.find('{')));
  written.erase("llamesh_build_info");
  EXPECT_EQ(shown, written);
}

}  // namespace
}  // namespace llamesh::train
