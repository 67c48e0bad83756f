#include "app/report/report.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "app/report/chart.hpp"
#include "app/report/run_metrics.hpp"
#include "core/error.hpp"
#include "error_of.hpp"
#include "temporary_folder.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

/// A run folder that goes away with the test.
class Report : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) { temporary.write(name, text); }
  RunMetrics metrics(const std::string& text) {
    write("metrics.jsonl", text);
    return read_metrics(folder / "metrics.jsonl");
  }
  std::string report(const std::string& text) {
    write("metrics.jsonl", text);
    write_report(folder);
    std::ifstream in(folder / "report.html");
    return (std::ostringstream() << in.rdbuf()).str();
  }
  test::TemporaryFolder temporary;
  const fs::path& folder = temporary.path();
};

std::string step(int index, const std::string& loss, const std::string& rate = "1000") {
  return "{\"step\":" + std::to_string(index) + ",\"loss\":" + loss +
         ",\"grad_norm\":1.5,\"lr\":0.001,\"tokens\":" + std::to_string(index * 512) +
         ",\"seconds\":0.5,\"tokens_per_second\":" + rate +
         ",\"mfu\":0.25,\"memory\":{\"valley\":5242880,\"peak\":8388608},"
         "\"traffic\":{\"shard\":1048576},\"traffic_between_nodes\":{\"shard\":524288}}\n";
}

std::string event(const std::string& name, int index, const std::string& more = "") {
  return "{\"event\":\"" + name + "\",\"step\":" + std::to_string(index) + more + "}\n";
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST_F(Report, ResumeReplacesStepsAndDropsWhatLayBeyond) {
  const RunMetrics run = metrics(step(1, "5") + step(2, "4") + event("checkpoint", 2) +
                                 step(3, "3") + event("validation", 3, ",\"loss\":3.5") +
                                 step(4, "2") + event("resume", 2) + step(3, "30"));
  ASSERT_EQ(run.steps.size(), 3u);
  EXPECT_EQ(run.steps.at(2).loss, 4);
  EXPECT_EQ(run.steps.at(3).loss, 30);
  EXPECT_TRUE(run.validation.empty());
  EXPECT_EQ(run.resumes, std::vector<std::int64_t>{2});
  EXPECT_EQ(run.checkpoints, 1u);
}

TEST_F(Report, ALaterLineOfAStepReplacesTheEarlierOne) {
  const RunMetrics run = metrics(step(1, "5") + step(2, "4") + step(2, "6"));
  ASSERT_EQ(run.steps.size(), 2u);
  EXPECT_EQ(run.steps.at(2).loss, 6);
}

TEST_F(Report, BadLinesAreLeftOutAndCountedButATornLastOneIsNot) {
  const RunMetrics run = metrics(step(1, "5") + "{\"step\":2,\"lo\n[1]\n" + "{\"step\":-3}\n" +
                                 "{\"step\":1e999}\n{\"step\":4,\"memory\":7}\n" + step(5, "3") +
                                 "{\"step\":6,\"loss");
  EXPECT_EQ(run.steps.size(), 2u);
  EXPECT_EQ(run.unreadable, 5u);
}

TEST_F(Report, DeeplyNestedValuesAreLeftOut) {
  const std::string deep(400'000, '[');
  const std::string line =
      "{\"step\":2,\"traffic\":{\"shard\":" + deep + std::string(deep.size(), ']') + "}}\n";
  const RunMetrics run = metrics(step(1, "5") + line);
  EXPECT_EQ(run.steps.size(), 1u);
  EXPECT_EQ(run.unreadable, 1u);
}

TEST_F(Report, ShowsHeadlinesChartsAndConfig) {
  write("config.yaml",
        "model: {hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2,\n"
        "  num_attention_heads: 4, num_key_value_heads: 2, vocab_size: 100}\n"
        "mesh: {axes: {replicate: 2, shard: 3}}\nsharding: {strategy: hybrid_shard}\n");
  std::string lines;
  for (int i = 1; i <= 50; ++i) lines += step(i, std::to_string(5.0 - 0.05 * i), "1234");
  const std::string html = report(lines + event("validation", 50, ",\"loss\":2.71828"));
  for (const char* part :
       {"2.7183", "2 layers", "heads 4/2", "replicate 2 × shard 3", "hybrid_shard", "1.23 k",
        "25.0 %", "8.0 MiB", "5.0 MiB", "1.0 MiB", "512.0 KiB"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_EQ(count(html, "<svg"), 5u);
  EXPECT_EQ(count(html, "nothing recorded"), 0u);
}

TEST_F(Report, NeedsNothingFromOutside) {
  const std::string html = report(step(1, "5"));
  for (const char* part : {"http:", "https:", "<script", "<link", "url(", "src="})
    EXPECT_EQ(html.find(part), std::string::npos) << part;
}

TEST_F(Report, LinesThatTheRunHasCutMakeNoDifference) {
  const std::string kept =
      event("resume", 0) + step(1, "5") + step(2, "4") + event("checkpoint", 2);
  const std::string lost = step(3, "3") + event("validation", 3, ",\"loss\":3.5");
  const std::string again = event("resume", 2) + step(3, "30");
  const RunMetrics cut = metrics(kept + again);
  const RunMetrics whole = metrics(kept + lost + again);
  EXPECT_EQ(cut.steps.size(), 3u);
  EXPECT_EQ(cut.steps.at(3).loss, 30);
  EXPECT_EQ(whole.steps.at(3).loss, 30);
  EXPECT_EQ(cut.steps.size(), whole.steps.size());
  EXPECT_EQ(cut.validation, whole.validation);
  EXPECT_EQ(cut.resumes, whole.resumes);
  EXPECT_EQ(cut.unreadable, 0u);
}

TEST_F(Report, HostileValuesDrawNoImpossibleCoordinates) {
  const std::string lines[] = {
      step(1, "null"),                                       // NaN, one point, no validation
      step(1, "\"text\"") + step(2, "null") + step(3, "1"),  // strings for numbers
      step(1, "1e308") + step(2, "-1e308") + step(3, "0"),   // a range that overflows
      step(1, "0", "0") + step(2, "0", "0"),                 // constant and zero
      step(1, "1e-300") + event("validation", 1, ",\"loss\":null"),
      "{\"step\":7}\n"};
  for (const std::string& text : lines) {
    const std::string html = report(text);
    for (auto at = html.find("<svg"); at != std::string::npos; at = html.find("<svg", at + 1)) {
      const std::string svg = html.substr(at, html.find("</svg>", at) - at);
      EXPECT_EQ(svg.find("nan"), std::string::npos) << text;
      EXPECT_EQ(svg.find("inf"), std::string::npos) << text;
    }
    EXPECT_NE(html.find("</html>"), std::string::npos) << text;
  }
}

TEST_F(Report, TextOfTheRunCannotBreakThePage) {
  write("config.yaml", "run: {name: \"</pre><script>alert(1)</script>\"}\nmesh: 3\nmodel: [1]\n");
  const std::string html = report(step(1, "5"));
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_NE(html.find("&lt;script&gt;"), std::string::npos);
  write("config.yaml", "a: [unclosed");
  EXPECT_NE(report(step(1, "5")).find("</html>"), std::string::npos);
}

TEST_F(Report, AFreshStartIsNoResume) {
  const RunMetrics fresh = metrics(event("start", 0) + step(1, "5") + event("resume", 1));
  EXPECT_EQ(fresh.resumes, std::vector<std::int64_t>{1});
  // As llamesh called it once; and what an earlier run left in the file does not count.
  const RunMetrics again = metrics(step(1, "9") + step(2, "8") + event("resume", 0) + step(1, "5"));
  EXPECT_EQ(again.steps.size(), 1u);
  EXPECT_TRUE(again.resumes.empty());
  EXPECT_EQ(metrics(step(7, "9") + event("start", 0) + step(1, "5")).steps.size(), 1u);
  EXPECT_EQ(count(report(event("start", 0) + step(1, "5")), "resumed from"), 0u);
}

TEST_F(Report, MetricsWithoutAStepAreAUserError) {
  for (const std::string& text : {std::string(), event("start", 0), std::string("no JSON\n")}) {
    write("metrics.jsonl", text);
    const std::string said = test::error_of([&] { write_report(folder); });
    EXPECT_NE(said.find("metrics.jsonl has no training step yet"), std::string::npos) << said;
  }
  EXPECT_FALSE(fs::exists(folder / "report.html"));
}

TEST_F(Report, MissingMetricsAreAUserErrorAndAnUnwritableReportAnIoFailure) {
  try {
    write_report(folder);
    FAIL() << "no error for a folder without metrics.jsonl";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input);
    EXPECT_NE(std::string(error.what()).find("metrics.jsonl"), std::string::npos);
  }
  EXPECT_FALSE(fs::exists(folder / "report.html"));
  write("metrics.jsonl", step(1, "5"));
  fs::create_directory(folder / "report.html");
  try {
    write_report(folder);
    FAIL() << "no error for a folder in the way";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::io_failure);
  }
}

TEST(Chart, TicksAreRoundNumbersWithinTheRange) {
  const auto close = [](const std::vector<double>& have, const std::vector<double>& want) {
    ASSERT_EQ(have.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(have[i], want[i], 1e-12);
  };
  close(nice_ticks(0, 10, 5), {0, 2, 4, 6, 8, 10});
  close(nice_ticks(0.13, 0.61, 5), {0.2, 0.3, 0.4, 0.5, 0.6});
  close(nice_ticks(-3, 3, 3), {-2, 0, 2});
  EXPECT_TRUE(nice_ticks(1, 1, 5).empty());
  EXPECT_TRUE(nice_ticks(1e18, 1e18 + 256, 5).empty()) << "their distance is lost in them";
}

TEST(Chart, CompactNumbersKeepThreeDigits) {
  EXPECT_EQ(compact(0), "0");
  EXPECT_EQ(compact(999), "999");
  EXPECT_EQ(compact(1234567), "1.23 M");
  EXPECT_EQ(compact(26960), "27.0 k");
  EXPECT_EQ(compact(999999), "1.00 M");
}

}  // namespace
}  // namespace llamesh::app
