#include "app/report/report.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <sstream>

#include "app/report/chart.hpp"
#include "app/report/summary.hpp"
#include "config/inputs.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "model/parameters.hpp"
#include "runs/small_run.hpp"
#include "support.hpp"
#include "temporary_folder.hpp"
#include "train/records/run_metrics.hpp"
#include "train/records/run_state.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;
using train::RunMetrics;

/// A temporary run folder.
class Report : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) { temporary.write(name, text); }
  RunMetrics metrics(const std::string& text) {
    write("metrics.jsonl", text);
    return train::read_metrics(folder / "metrics.jsonl");
  }
  std::string report(const std::string& text) {
    write("metrics.jsonl", text);
    write_report({folder.string()});
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
  auto inputs = test::small_inputs(folder);
  inputs.mesh = {.replicate = 2, .shard = 3};
  inputs.sharding.strategy = sharding::Strategy::hybrid_shard;
  write("config.yaml", config::to_yaml(inputs));
  std::string lines;
  for (int i = 1; i <= 50; ++i) lines += step(i, std::to_string(5.0 - 0.05 * i), "1234");
  const std::string html = report(lines + event("validation", 50, ",\"loss\":2.71828"));
  for (const char* part :
       {"2.7183", "3 layers", "heads 6/3", "replicate 2 × shard 3", "hybrid_shard", "1.23 k",
        "25.0 %", "8.0 MiB", "5.0 MiB", "1.0 MiB", "512.0 KiB"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_EQ(count(html, "<figure"), 8u);
  EXPECT_EQ(count(html, "<svg"), 10u);  // the wide ones also for narrow screens
  EXPECT_EQ(count(html, "nothing recorded"), 0u);
}

TEST_F(Report, CountsTheParametersOfEveryFamily) {
  for (const auto& [family, experts] :
       {std::pair("llama", 0), std::pair("gpt2", 0), std::pair("mixtral", 4)}) {
    auto inputs = test::small_inputs(folder);
    inputs.model.family = family;
    inputs.model.num_key_value_heads = inputs.model.num_attention_heads;
    inputs.model.max_position_embeddings = family == std::string("gpt2") ? 24 : 0;
    inputs.model.num_experts = experts;
    inputs.model.num_experts_per_tok = experts / 2;
    const auto config = config::to_yaml(inputs);
    write("config.yaml", config);
    const auto table = model::parameter_table(config::parse_inputs(config, "config.yaml").model);
    EXPECT_NE(report(step(1, "5")).find(parameters_text(table.numel()) + " parameters"),
              std::string::npos)
        << family;
  }
}

TEST_F(Report, ShowsEachValidationSetAndEarlyStop) {
  const std::string lines = step(1, "5") + event("validation", 1, R"(,"loss":3.5,"set":"wiki")") +
                            event("validation", 1, R"(,"loss":4.5)") + step(2, "4") +
                            event("validation", 2, R"(,"loss":3.6,"set":"wiki")") +
                            event("validation", 2, R"(,"loss":4.4)") + event("early_stop", 2);
  const RunMetrics run = metrics(lines);
  EXPECT_EQ(run.validation_set, "wiki");
  EXPECT_EQ(run.validation, (std::map<std::int64_t, double>{{1, 3.5}, {2, 3.6}}));
  EXPECT_EQ(run.other_validation.at(""), (std::map<std::int64_t, double>{{1, 4.5}, {2, 4.4}}));
  EXPECT_EQ(run.early_stop, 2);
  const std::string html = report(lines);
  for (const char* part : {"validation: wiki", "wiki, step 2", "best 3.5", "early stop"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  const RunMetrics resumed = metrics(lines + event("resume", 1) + step(2, "4"));
  EXPECT_FALSE(resumed.early_stop.has_value());
  EXPECT_EQ(resumed.validation.size(), 1u);
  EXPECT_EQ(resumed.other_validation.at("").size(), 1u);
}

TEST_F(Report, NeedsNothingFromOutside) {
  const std::string html = report(step(1, "5"));
  for (const char* part : {"https:", "<link", "url(", "src=", "import", "fetch("})
    EXPECT_EQ(html.find(part), std::string::npos) << part;
  // SVG's XML namespace for scripts, an address that is never looked up.
  EXPECT_EQ(count(html, "http:"), count(html, "'http://www.w3.org/2000/svg'"));
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
      step(1, "\"text\"") + step(2, "null") + step(3, "1"),  // strings instead of numbers
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
  EXPECT_EQ(count(html, "<script"), 2u);  // its own: data and code
  EXPECT_NE(html.find("&lt;script&gt;"), std::string::npos);
  write("config.yaml", "a: [unclosed");
  EXPECT_NE(report(step(1, "5")).find("</html>"), std::string::npos);
}

TEST_F(Report, AFreshStartIsNoResume) {
  const RunMetrics fresh = metrics(event("start", 0) + step(1, "5") + event("resume", 1));
  EXPECT_EQ(fresh.resumes, std::vector<std::int64_t>{1});
  // Older llamesh versions wrote this event; steps left in the file by an earlier run do not count.
  const RunMetrics again = metrics(step(1, "9") + step(2, "8") + event("resume", 0) + step(1, "5"));
  EXPECT_EQ(again.steps.size(), 1u);
  EXPECT_TRUE(again.resumes.empty());
  EXPECT_EQ(metrics(step(7, "9") + event("start", 0) + step(1, "5")).steps.size(), 1u);
  EXPECT_EQ(count(report(event("start", 0) + step(1, "5")), "resumed from"), 0u);
}

TEST_F(Report, SkippedStepsAndSpikesAreMarkedWhereTheyCount) {
  const auto lines = step(1, "5") + step(2, "null") + event("skipped", 2) + step(3, "4") +
                     step(4, "9") + event("spike", 4) + event("spike", 4);
  const RunMetrics run = metrics(lines);
  EXPECT_EQ(run.skipped, std::set<std::int64_t>{2});
  EXPECT_EQ(run.spikes, std::set<std::int64_t>{4});
  const auto html =
      report(lines);  // in the charts for loss, which appears twice, and gradient norm
  EXPECT_EQ(count(html, "not finite: no update</span>"), 2u);
  EXPECT_EQ(count(html, "spike</span>"), 2u);
  EXPECT_EQ(count(html, "<line class=\"mark\" style=\"--c:var(--red)\" data-x=\"2\""), 3u);
  EXPECT_EQ(count(html, "<line class=\"mark\" style=\"--c:var(--orange)\" data-x=\"4\""), 3u);
  EXPECT_EQ(count(html, "resumed from"), 0u);
  const RunMetrics again = metrics(lines + event("resume", 3) + step(4, "3"));
  EXPECT_TRUE(again.spikes.empty());
  EXPECT_EQ(again.skipped.size(), 1u);
}

TEST_F(Report, MetricsWithoutAStepAreAUserError) {
  for (const std::string& text : {std::string(), event("start", 0), std::string("no JSON\n")}) {
    write("metrics.jsonl", text);
    const std::string said = test::error_of([&] { write_report({folder.string()}); });
    EXPECT_NE(said.find("metrics.jsonl has no training step yet"), std::string::npos) << said;
  }
  EXPECT_FALSE(fs::exists(folder / "report.html"));
}

TEST_F(Report, MissingMetricsAndAMissingFolderAreUserErrors) {
  try {
    write_report({folder.string()});
    FAIL() << "no error for a folder without metrics.jsonl";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input);
    EXPECT_NE(std::string(error.what()).find("metrics.jsonl"), std::string::npos);
  }
  EXPECT_FALSE(fs::exists(folder / "report.html"));
  write("metrics.jsonl", step(1, "5"));
  EXPECT_NE(test::error_of([&] {
              write_report({folder.string()}, (folder / "none" / "report.html").string());
            }).find("there is no folder " + (folder / "none").string()),
            std::string::npos);
}

TEST_F(Report, ReplacesAnEarlierReportButNoOtherFile) {
  write("metrics.jsonl", step(1, "5"));
  const auto file = folder / "report.html";
  for (const char* other : {"my notes\n", "<!doctype html>\n<html lang=\"en\"><head></head>", ""}) {
    write("report.html", other);
    const auto error = test::error_of([&] { write_report({folder.string()}); });
    EXPECT_NE(error.find("report.html' exists; choose another name"), std::string::npos) << error;
    EXPECT_EQ(read_file(file, 100), other);
  }
  write_report({folder.string()}, "", Existing::replace);
  const auto first = read_file(file, 1 << 24);
  EXPECT_EQ(report(step(1, "5")), first);
  const auto newer = report(step(1, "4.75"));
  EXPECT_NE(newer, first);
  EXPECT_NE(newer.find("4.7500"), std::string::npos);
}

TEST_F(Report, GoesToStandardOutput) {
  write("metrics.jsonl", step(1, "5"));
  testing::internal::CaptureStdout();
  EXPECT_EQ(write_report({folder.string()}, "-"), "-");
  const auto page = testing::internal::GetCapturedStdout();
  EXPECT_TRUE(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
  EXPECT_FALSE(fs::exists(folder / "report.html") || fs::exists("-"));
}

std::string timed(int index, double time, const std::string& more = "") {
  return fmt::format(R"({{"step":{},"loss":{},"seconds":0.5,"time":{}{}}})"
                     "\n",
                     index, 5.0 / index, time, more);
}

TEST_F(Report, TheClockLeavesOutPausesAndLostWork) {
  const RunMetrics run =
      metrics(event("start", 0, ",\"time\":1000") + timed(1, 1002) + timed(2, 1005) +
              timed(3, 1900) + event("resume", 2, ",\"time\":50000") + timed(3, 50004));
  EXPECT_EQ(run.steps.at(1).elapsed, 2);
  EXPECT_EQ(run.steps.at(2).elapsed, 5);
  EXPECT_EQ(run.steps.at(3).elapsed, 9);
}

TEST_F(Report, WithoutTimesTheClockCountsTheSteps) {
  const RunMetrics run = metrics(step(1, "5") + step(2, "4") + timed(3, 1e300) + timed(4, -1));
  EXPECT_EQ(run.steps.at(4).elapsed, 2);
}

TEST_F(Report, DrawsWhatTheAxesTakeAndHowTheRunStarted) {
  std::string lines =
      event("start", 0, R"(,"time":1763861810,"host":"node7","ranks":64,"version":"0.1.9")") +
      event("startup", 1, R"(,"phases":{"MPI_Init":2.5,"first step":1.5,"odd":"x"})");
  for (int i = 1; i <= 9; ++i)
    lines += timed(
        i, 1763861810 + i,
        R"(,"seconds_compute":0.3,"exposed":{"shard":0.15},"traffic":{"shard":1048576},"mfu":0.5)");
  const std::string html = report(lines);
  for (const char* part :
       {"waiting for shard", "computing", "node7", ">64<", "0.1.9", "2025-11-23 01:36 UTC",
        "MPI_Init", "2.5 s", "KiB sent per rank and step"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_EQ(count(html, "nothing recorded"), 4u);  // memory, throughput, norm, rate
}

TEST_F(Report, ShowsEnergyWhereItIsKnown) {
  EXPECT_EQ(report(step(1, "5")).find("kWh"), std::string::npos);
  std::string lines;
  for (int i = 1; i <= 4; ++i)
    lines += timed(i, 1000 + i, R"(,"joules":1800000,"tokens_per_joule":2.5)");
  const std::string html = report(lines);
  for (const char* part : {"2 kWh", "median 2.5 tokens/J", "tokens per joule"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
}

TEST_F(Report, DrawsWhereTheTimeWent) {
  EXPECT_EQ(report(step(1, "5")).find("Goodput"), std::string::npos);
  train::write_run_state(folder, {.goodput = {.productive = 75, .saving = 5, .waiting = 20}});
  const std::string html = report(step(1, "5"));
  for (const char* part : {"Goodput", "75.0 %", "waiting", "--share:0.200"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_EQ(html.find("diagnosing"), std::string::npos) << "unknown";
}

TEST_F(Report, DrawsTheBalanceOfExperts) {
  std::string lines;
  for (int i = 1; i <= 9; ++i)
    lines += timed(i, 1763861810 + i,
                   R"(,"experts":{"max_load":1.5,"min_load":0.5,"entropy":0.75,"aux_loss":2.25,)"
                   R"("layers":{"3":{"max_load":1.5}}})");
  const std::string html = report(lines);
  for (const char* part : {"Expert load", "busiest expert", "Router losses", "load balancing"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_EQ(report(step(1, "5")).find("Expert load"), std::string::npos);
}

TEST_F(Report, TheValuesUnderThePointerAreThoseOfTheSteps) {
  const std::string html = report(step(1, "5.125") + step(2, "4.25") + step(4, "3.0625"));
  EXPECT_NE(html.find(R"(data-label="training, each step" data-run="0" data-x="1 2 4" )"
                      R"(data-y="5.125 4.25 3.0625")"),
            std::string::npos);
  EXPECT_NE(html.find(R"({"unit":"seconds","runs":[[[1,2,4],[0.5,1,1.5]]]})"), std::string::npos);
}

TEST_F(Report, ComparesRuns) {
  for (const char* run : {"first", "second"}) fs::create_directory(folder / run);
  write("first/metrics.jsonl",
        step(1, "5") + step(2, "4") + event("validation", 2, ",\"loss\":3.5"));
  write("second/metrics.jsonl", step(1, "6") + step(2, "5") + step(3, "4.5"));
  write("first/config.yaml", "run: {name: a}\noptimizer: {lr: 0.001, betas: [0.9, 0.95]}\nx: 1\n");
  write("second/config.yaml", "run: {name: b}\noptimizer: {lr: 0.003, betas: [0.9, 0.95]}\nx: 1\n");
  const auto file = folder / "both.html";
  EXPECT_EQ(
      write_report({(folder / "first").string(), (folder / "second/").string()}, file.string()),
      file);
  const std::string html = read_file(file, 1 << 24);
  EXPECT_NE(html.find("<tr><td>optimizer.lr</td><td>0.001</td><td>0.003</td></tr>"),
            std::string::npos);
  for (const char* same : {"optimizer.betas", "run.name", "<td>x</td>"})
    EXPECT_EQ(html.find(same), std::string::npos) << same;
  EXPECT_NE(html.find(R"(data-label="first" data-run="0" data-x="1 2")"), std::string::npos);
  EXPECT_NE(html.find(R"(data-label="second" data-run="1" data-x="1 2 3")"), std::string::npos);
  EXPECT_EQ(count(html, "<figure"), 8u);
  const auto error = test::error_of([&] {
    write_report(std::vector<std::string>(13, (folder / "first").string()), file.string());
  });
  EXPECT_NE(error.find("12 at most"), std::string::npos) << error;
}

TEST_F(Report, TellsRanksAndMeshOfTheLastStart) {
  const std::string start = R"(,"ranks":6,"mesh":"replicate=2 x shard=3")";
  auto inputs = test::small_inputs(folder);
  inputs.mesh.tensor = 3;
  write("config.yaml", config::to_yaml(inputs));
  const auto page = report(event("start", 0, start) + step(1, "5"));
  EXPECT_NE(page.find("6 ranks · replicate 2 × shard 3"), std::string::npos);
  // For a run by an earlier version, only its inputs are known.
  const auto older = report(step(1, "5"));
  const auto facts = older.substr(older.find("<p class=\"facts\">"), 200);
  EXPECT_NE(facts.find(" · tensor 3 · fp32"), std::string::npos) << facts;

  fs::create_directory(folder / "other");
  write("other/metrics.jsonl", event("start", 0, R"(,"ranks":1,"mesh":"shard=1")") + step(1, "5"));
  write("metrics.jsonl", event("start", 0, start) + step(1, "5"));
  const auto file = (folder / "both.html").string();
  write_report({folder.string(), (folder / "other").string()}, file);
  const auto both = read_file(file, 1 << 24);
  EXPECT_NE(both.find("<td>6</td><td>replicate 2 × shard 3</td>"), std::string::npos);
  EXPECT_NE(both.find("<td>1</td><td>shard 1</td>"), std::string::npos);
}

/// Returns a curve's values by step.
std::map<int, double> curve_of(const std::string& page, const std::string& label) {
  const auto numbers = [&](std::size_t from, const std::string& attribute) {
    const auto begin = page.find(attribute, from) + attribute.size();
    std::istringstream text(page.substr(begin, page.find('"', begin) - begin));
    return std::vector<double>(std::istream_iterator<double>(text), {});
  };
  const auto at = page.find("data-label=\"" + label + "\"");
  EXPECT_NE(at, std::string::npos) << label;
  const auto steps = numbers(at, "data-x=\""), values = numbers(at, "data-y=\"");
  std::map<int, double> curve;
  for (std::size_t i = 0; i < steps.size(); ++i) curve[static_cast<int>(steps[i])] = values.at(i);
  return curve;
}

TEST_F(Report, ASpikeIsNeitherFlattenedNorWidenedWhereCurvesAreSmoothed) {
  std::string lines;
  for (int i = 1; i <= 400; ++i)
    lines += step(i, i == 200 || i == 201 ? "9" : i % 2 == 0 ? "3.1" : "2.9");
  const auto curve = curve_of(report(lines), "training, smoothed");
  EXPECT_EQ(curve.at(200), 9);
  EXPECT_EQ(curve.at(201), 9);
  for (const int i : {100, 190, 199, 202, 300}) EXPECT_NEAR(curve.at(i), 3, 0.05) << i;
}

TEST_F(Report, TheScaleOfTheLossIsLogarithmicWhereALinearOneShowsLittle) {
  const auto losses = [&](const std::function<double(int)>& loss) {
    std::string lines;
    for (int i = 1; i <= 100; ++i) lines += step(i, std::to_string(loss(i)));
    return count(report(lines), "nats per token, logarithmic");
  };
  EXPECT_EQ(losses([](int i) { return 10 - 0.07 * i; }), 0U);
  EXPECT_EQ(losses([](int i) { return 10 * std::pow(0.9, i); }), 1U);
  EXPECT_EQ(losses([](int i) { return i == 50 ? 40 : 3; }), 1U) << "a spike";
  EXPECT_EQ(losses([](int i) { return i == 50 ? 0 : 3; }), 0U) << "a step without targets";
}

TEST_F(Report, RunsOfOneNameAreToldApartByTheirPaths) {
  for (const char* run : {"a/run", "b/run"}) {
    fs::create_directories(folder / run);
    write(std::string(run) + "/metrics.jsonl", step(1, "5"));
  }
  const auto file = folder / "both.html";
  write_report({(folder / "a/run").string(), (folder / "b/run").string()}, file.string());
  EXPECT_NE(read_file(file, 1 << 24).find((folder / "a/run").string()), std::string::npos);
}

TEST_F(Report, AtTheEndOfARunIsNeverAnError) {
  write_report_quietly(folder);
  write("metrics.jsonl", event("start", 0));
  write_report_quietly(folder);
  EXPECT_FALSE(fs::exists(folder / "report.html"));
  write("metrics.jsonl", step(1, "5"));
  fs::create_directory(folder / "report.html");
  write_report_quietly(folder);
  fs::remove(folder / "report.html");
  write_report_quietly(folder);
  EXPECT_TRUE(fs::exists(folder / "report.html"));
}

TEST(Chart, AClockIsLinearBetweenItsSteps) {
  const Clock clock{.steps = {1, 3, 7}, .times = {10, 20, 60}};
  EXPECT_EQ(clock.time_of(0), 10);
  EXPECT_EQ(clock.time_of(2), 15);
  EXPECT_EQ(clock.time_of(3), 20);
  EXPECT_EQ(clock.time_of(6), 50);
  EXPECT_EQ(clock.time_of(9), 60);
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
