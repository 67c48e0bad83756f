#include "app/report/report.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "app/report/page_data.hpp"
#include "config/inputs.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "model/description/parameters.hpp"
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
    return read_file(folder / "report.html", 1 << 24);
  }
  /// Returns the run's data in its report.
  Json data(const std::string& text) { return data_in(report(text))["runs"][0]; }
  static Json data_in(const std::string& html) {
    const std::string_view begin = "id=\"data\">";
    const auto at = html.find(begin) + begin.size();
    return Json::parse(html.substr(at, html.find("</script", at) - at));
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

TEST_F(Report, HasTheFiguresOfTheRunAndItsInputs) {
  auto inputs = test::small_inputs(folder);
  inputs.mesh = {.replicate = 2, .shard = 3};
  inputs.sharding.strategy = sharding::Strategy::hybrid_shard;
  const auto config = config::to_yaml(inputs);
  write("config.yaml", config);
  std::string lines;
  for (int i = 1; i <= 50; ++i) lines += step(i, std::to_string(5.0 - 0.05 * i), "1234");
  const auto run = data(lines + event("validation", 50, ",\"loss\":2.71828"));
  EXPECT_EQ(run["config"], config);
  const Json facts = {{"layers", 3},
                      {"heads", 6},
                      {"kv_heads", 3},
                      {"strategy", "hybrid_shard"},
                      {"mesh", "replicate=2 x shard=3"}};
  for (const auto& [key, value] : facts.items()) EXPECT_EQ(run["inputs"][key], value) << key;
  EXPECT_EQ(run["step"], 50);
  EXPECT_EQ(run["span"], 1);
  EXPECT_EQ(run["validation"][0]["values"], Json::array({2.7183}));
  const auto& metrics = run["metrics"];
  EXPECT_EQ(metrics["loss"]["closing"], 2.5);
  EXPECT_EQ(metrics["tokens"]["last"], 25600);
  EXPECT_EQ(metrics["tokens_per_second"]["median"], 1234);
  EXPECT_EQ(metrics["mfu"]["median"], 0.25);
  EXPECT_EQ(metrics["seconds"]["sum"], 25);
  EXPECT_EQ(metrics["memory.peak"]["max"], 8388608);
  EXPECT_EQ(metrics["memory.valley"]["max"], 5242880);
  EXPECT_EQ(metrics["traffic.shard"]["last"], 1048576);
  EXPECT_EQ(metrics["traffic_between_nodes.shard"]["last"], 524288);
  for (const auto& [key, quantity] : metrics.items())
    for (const char* curve : {"steps", "each", "smooth"})
      EXPECT_EQ(quantity[curve].size(), 50U) << key;
  EXPECT_FALSE(metrics.contains("joules")) << "nobody measured it";
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
    EXPECT_EQ(data(step(1, "5"))["inputs"]["parameters"], table.numel()) << family;
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
  const auto shown = data(lines);
  EXPECT_EQ(shown["early_stop"], true);
  EXPECT_EQ(shown["validation"][0],
            Json({{"steps", {1, 2}}, {"values", {3.5, 3.6}}, {"set", "wiki"}}));
  EXPECT_EQ(shown["validation"][1], Json({{"steps", {1, 2}}, {"values", {4.5, 4.4}}, {"set", ""}}));
  const RunMetrics resumed = metrics(lines + event("resume", 1) + step(2, "4"));
  EXPECT_FALSE(resumed.early_stop.has_value());
  EXPECT_EQ(resumed.validation.size(), 1u);
  EXPECT_EQ(resumed.other_validation.at("").size(), 1u);
}

TEST_F(Report, NeedsNothingFromOutside) {
  const std::string html = report(step(1, "5"));
  for (const char* part : {"https:", "<link", "url(", "src=", "import", "fetch("})
    EXPECT_EQ(html.find(part), std::string::npos) << part;
  EXPECT_EQ(html.find("http:"), std::string::npos);
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

TEST_F(Report, HostileValuesBecomeGaps) {
  const std::pair<std::string, Json> lines[] = {
      {step(1, "null"), nullptr},
      {step(1, "\"text\"") + step(2, "null") + step(3, "1"), {nullptr, nullptr, 1.0}},
      {step(1, "1e308") + step(2, "-1e308") + step(3, "0"), {1e308, -1e308, 0.0}},
      {step(1, "1e-300") + event("validation", 1, ",\"loss\":null"), {1e-300}},
      {"{\"step\":7}\n", nullptr}};
  for (const auto& [text, losses] : lines) {
    const auto run = data(text);  // else NaN and infinity would be no JSON
    EXPECT_EQ(run["metrics"].value("/loss/each"_json_pointer, Json()), losses) << text;
  }
}

TEST_F(Report, TextOfTheRunCannotBreakThePage) {
  const std::string hostile = "</pre></script><!--<script>alert(1)</script>\xff\u2028";
  const auto quoted = "\"" + hostile + "\"";
  const auto config = "run: {name: " + quoted + "}\nmesh: 3\nmodel: [1]\n";
  write("config.yaml", config);
  const std::string html =
      report(event("start", 0, ",\"host\":\"<b>\",\"mesh\":\"</script>\"") + step(1, "5") +
             event("validation", 1, R"(,"loss":3.5,"set":"</script>")") +
             R"({"step":2,"traffic":{"</script>":1}})" + "\n");
  // Its own: the data and the script.
  EXPECT_EQ(count(html, "<script"), 2U);
  EXPECT_EQ(count(html, "</script"), 2U);
  EXPECT_EQ(count(html, "<!--"), 0U);
  const auto run = data_in(html)["runs"][0];
  EXPECT_NE(run["config"].get<std::string>().find("<!--<script>alert(1)</script>"),
            std::string::npos);
  EXPECT_EQ(run["validation"][0]["set"], "</script>");
  EXPECT_TRUE(run["metrics"].contains("traffic.</script>"));
  EXPECT_TRUE(run["inputs"].is_null());
  write("config.yaml", "a: [unclosed");
  EXPECT_EQ(data(step(1, "5"))["config"], "a: [unclosed");
}

TEST_F(Report, AFreshStartIsNoResume) {
  const RunMetrics fresh = metrics(event("start", 0) + step(1, "5") + event("resume", 1));
  EXPECT_EQ(fresh.resumes, std::vector<std::int64_t>{1});
  // Older llamesh versions wrote this event; steps left in the file by an earlier run do not count.
  const RunMetrics again = metrics(step(1, "9") + step(2, "8") + event("resume", 0) + step(1, "5"));
  EXPECT_EQ(again.steps.size(), 1u);
  EXPECT_TRUE(again.resumes.empty());
  EXPECT_EQ(metrics(step(7, "9") + event("start", 0) + step(1, "5")).steps.size(), 1u);
  EXPECT_TRUE(data(event("start", 0) + step(1, "5"))["resumes"].empty());
}

TEST_F(Report, SkippedStepsAndSpikesAreMarkedWhereTheyCount) {
  const auto lines = step(1, "5") + step(2, "null") + event("skipped", 2) + step(3, "4") +
                     step(4, "9") + event("spike", 4) + event("spike", 4);
  const RunMetrics run = metrics(lines);
  EXPECT_EQ(run.skipped, std::set<std::int64_t>{2});
  EXPECT_EQ(run.spikes, std::set<std::int64_t>{4});
  const auto shown = data(lines);
  EXPECT_EQ(shown["skipped"], Json::array({2}));
  EXPECT_EQ(shown["spikes"], Json::array({4}));
  EXPECT_TRUE(shown["resumes"].empty());
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
            }).find("the folder " + (folder / "none").string() + " does not exist"),
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
  // Begun by an earlier version.
  write("report.html",
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>a run"
        " – llamesh</title>");
  write_report({folder.string()});
  const auto first = read_file(file, 1 << 24);
  EXPECT_EQ(report(step(1, "5")), first);
  const auto newer = report(step(1, "4.75"));
  EXPECT_NE(newer, first);
  EXPECT_EQ(data_in(newer)["runs"][0]["metrics"]["loss"]["last"], 4.75);
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

TEST_F(Report, HasWhatTheAxesTakeAndHowTheRunStarted) {
  std::string lines =
      event("start", 0,
            R"(,"time":1763861810,"host":"node7","ranks":64,"version":"0.1.9","job":"4711",)"
            R"("command":"llamesh train a.yaml")") +
      event("startup", 1, R"(,"phases":{"MPI_Init":2.5,"first step":1.5,"odd":"x"})");
  for (int i = 1; i <= 9; ++i)
    lines += timed(
        i, 1763861810 + i,
        R"(,"seconds_compute":0.3,"exposed":{"shard":0.15},"traffic":{"shard":1048576},"mfu":0.5)");
  const auto run = data(lines);
  const std::vector<std::pair<std::string, double>> phases = {{"MPI_Init", 2.5},
                                                              {"first step", 1.5}};
  const Json start = {
      {"step", 0},       {"time", 1763861810.0}, {"ranks", 64.0},
      {"mesh", ""},      {"host", "node7"},      {"version", "0.1.9"},
      {"commit", ""},    {"job", "4711"},        {"command", "llamesh train a.yaml"},
      {"phases", phases}};
  EXPECT_EQ(run["starts"], Json::array({start}));
  for (const char* key : {"exposed.shard", "seconds_compute", "traffic.shard"})
    EXPECT_EQ(run["metrics"][key]["smooth"].size(), 9U) << key;
  for (const char* key : {"memory.peak", "tokens_per_second", "grad_norm", "lr"})
    EXPECT_FALSE(run["metrics"].contains(key)) << "nothing recorded: " << key;
}

TEST_F(Report, AnAxisThatTheRunNoLongerHasEndsInAGap) {
  const auto run = data(step(1, "5") + timed(2, 7, R"(,"traffic":{"replicate":5})"));
  EXPECT_TRUE(run["metrics"]["traffic.shard"]["last"].is_null());
  EXPECT_EQ(run["metrics"]["traffic.replicate"]["last"], 5);
}

TEST_F(Report, ShowsEnergyWhereItIsKnown) {
  std::string lines;
  for (int i = 1; i <= 4; ++i)
    lines += timed(i, 1000 + i, R"(,"joules":1800000,"tokens_per_joule":2.5)");
  const auto metrics = data(lines)["metrics"];
  EXPECT_EQ(metrics["joules"]["sum"], 7.2e6);
  EXPECT_EQ(metrics["tokens_per_joule"]["median"], 2.5);
}

TEST_F(Report, ShowsWhereTheTimeWent) {
  EXPECT_FALSE(data(step(1, "5")).contains("goodput"));
  train::write_run_state(folder, {.goodput = {.productive = 75, .saving = 5, .waiting = 20}});
  const auto parts = train::Goodput{.productive = 75, .saving = 5, .waiting = 20}.parts();
  EXPECT_EQ(data(step(1, "5"))["goodput"], Json(parts));
}

TEST_F(Report, ShowsTheBalanceOfExperts) {
  std::string lines;
  for (int i = 1; i <= 9; ++i)
    lines += timed(i, 1763861810 + i,
                   R"(,"experts":{"max_load":1.5,"min_load":0.5,"entropy":0.75,"aux_loss":2.25,)"
                   R"("layers":{"3":{"max_load":1.5}}})");
  const auto metrics = data(lines)["metrics"];
  const std::map<std::string, double> means = {
      {"max_load", 1.5}, {"min_load", 0.5}, {"entropy", 0.75}, {"aux_loss", 2.25}};
  for (const auto& [name, mean] : means)
    EXPECT_EQ(metrics["experts." + name]["smooth"][8], mean) << name;
  EXPECT_FALSE(metrics.contains("experts.z_loss"));
}

TEST_F(Report, TheValuesUnderThePointerAreThoseOfTheSteps) {
  const auto run = data(step(1, "5.125") + step(2, "4.25") + step(4, "3.0625"));
  EXPECT_EQ(run["metrics"]["loss"]["steps"], Json({1, 2, 4}));
  EXPECT_EQ(run["metrics"]["loss"]["each"], Json({5.125, 4.25, 3.0625}));
  EXPECT_EQ(run["clock"], Json({{"steps", {1, 2, 4}}, {"values", {0.5, 1.0, 1.5}}}));
}

TEST_F(Report, LongCurvesKeepTheirExtremesAndStaySmall) {
  std::string lines;
  for (int i = 1; i <= 20000; ++i)
    lines += fmt::format("{{\"step\":{},\"loss\":{}}}\n", i,
                         i == 7777    ? "9.5"
                         : i == 12345 ? "0.25"
                         : i == 5     ? "null"
                                      : "3.14159265");
  const auto html = report(lines);
  EXPECT_LT(html.size(), 200'000U);
  const auto loss = data_in(html)["runs"][0]["metrics"]["loss"];
  const auto steps = loss["steps"].get<std::vector<int>>();
  EXPECT_LE(steps.size(), 4000U);
  EXPECT_GT(steps.size(), 2000U);
  EXPECT_EQ(steps.front(), 1);
  EXPECT_EQ(steps.back(), 20000);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const double value = loss["each"][i];  // none is a gap
    EXPECT_EQ(value, steps[i] == 7777 ? 9.5 : steps[i] == 12345 ? 0.25 : 3.1416) << steps[i];
  }
  EXPECT_EQ(std::ranges::count(loss["each"], Json(9.5)), 1);
  EXPECT_EQ(std::ranges::count(loss["each"], Json(0.25)), 1);
}

TEST_F(Report, CurvesOfManyRunsHaveFewerPoints) {
  std::string lines;
  for (int i = 1; i <= 9000; ++i) lines += fmt::format("{{\"step\":{},\"loss\":{}}}\n", i, i % 7);
  const auto points = [&](std::size_t runs) {
    std::vector<ReportedRun> all(runs, {.name = "a", .config = {}, .metrics = metrics(lines)});
    return page_data(all, 0)["runs"][0]["metrics"]["loss"]["steps"].size();
  };
  EXPECT_GT(points(4), 3000U);
  EXPECT_LE(points(4), 4000U);
  EXPECT_LE(points(20), 800U);
  EXPECT_GT(points(20), 700U);
}

TEST_F(Report, LoadsItselfAgainOnlyIfWatched) {
  EXPECT_EQ(data_in(report(step(1, "5")))["refresh"], 0);
  write_report({folder.string()}, "", Existing::refuse, 30);
  EXPECT_EQ(data_in(read_file(folder / "report.html", 1 << 24))["refresh"], 30);
}

TEST_F(Report, ShowsTokensNotesAndTheLatestSamples) {
  auto inputs = test::small_inputs(folder);
  inputs.run.notes = "longer warmup";
  inputs.run.tags = {"baseline", "a"};
  write("config.yaml", config::to_yaml(inputs));
  std::string lines;
  for (int i = 1; i <= 12; ++i)
    lines += step(i, "5") +
             event("samples", i, fmt::format(R"(,"texts":[{{"prompt":"p","text":"t{}"}}])", i));
  const auto run = data(lines);
  EXPECT_EQ(run["tokens"]["values"][11], 12 * 512);
  EXPECT_EQ(run["inputs"]["notes"], "longer warmup");
  EXPECT_EQ(run["inputs"]["tags"], Json({"baseline", "a"}));
  ASSERT_EQ(run["samples"].size(), 10U);
  EXPECT_EQ(run["samples"][9], Json::parse(R"({"step":12,"texts":[{"prompt":"p","text":"t12"}]})"));
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
  const auto page = data_in(read_file(file, 1 << 24));
  EXPECT_EQ(page["differences"],
            Json::array({{{"key", "optimizer.lr"}, {"values", {"0.001", "0.003"}}}}));
  const auto& [first, second] = std::pair(page["runs"][0], page["runs"][1]);
  EXPECT_EQ(first["name"], "first");
  EXPECT_EQ(second["name"], "second");
  EXPECT_EQ(first["metrics"]["loss"]["steps"], Json({1, 2}));
  EXPECT_EQ(second["metrics"]["loss"]["steps"], Json({1, 2, 3}));
  // Left out, since many runs may be compared.
  EXPECT_FALSE(first["metrics"]["loss"].contains("each"));
  EXPECT_FALSE(first["metrics"].contains("traffic.shard"));
  EXPECT_FALSE(first.contains("config"));
  const auto error = test::error_of([&] {
    write_report(std::vector<std::string>(25, (folder / "first").string()), file.string());
  });
  EXPECT_NE(error.find("at most 24"), std::string::npos) << error;
}

TEST_F(Report, TellsRanksAndMeshOfTheLastStart) {
  const std::string start = R"(,"ranks":6,"mesh":"replicate=2 x shard=3")";
  auto inputs = test::small_inputs(folder);
  inputs.mesh.tensor = 3;
  write("config.yaml", config::to_yaml(inputs));
  const auto run = data(event("start", 0, start) + step(1, "5"));
  EXPECT_EQ(run["starts"][0]["ranks"], 6);
  EXPECT_EQ(run["starts"][0]["mesh"], "replicate=2 x shard=3");
  // For a run by an earlier version, only its inputs are known.
  const auto older = data(step(1, "5"));
  EXPECT_TRUE(older["starts"].empty());
  EXPECT_EQ(older["inputs"]["mesh"], "tensor=3");
  EXPECT_EQ(older["inputs"]["precision"], "fp32");

  fs::create_directory(folder / "other");
  write("other/metrics.jsonl", event("start", 0, R"(,"ranks":1,"mesh":"shard=1")") + step(1, "5"));
  write("metrics.jsonl", event("start", 0, start) + step(1, "5"));
  const auto file = (folder / "both.html").string();
  write_report({folder.string(), (folder / "other").string()}, file);
  const auto both = data_in(read_file(file, 1 << 24))["runs"];
  EXPECT_EQ(both[0]["starts"], run["starts"]);
  EXPECT_EQ(both[1]["starts"][0]["mesh"], "shard=1");
}

TEST_F(Report, ASpikeIsNeitherFlattenedNorWidenedWhereCurvesAreSmoothed) {
  std::string lines;
  for (int i = 1; i <= 400; ++i)
    lines += step(i, i == 200 || i == 201 ? "9" : i % 2 == 0 ? "3.1" : "2.9");
  const auto losses = data(lines)["metrics"]["loss"]["smooth"];  // from step 1 on
  EXPECT_EQ(losses[199], 9);
  EXPECT_EQ(losses[200], 9);
  for (const std::size_t i : {100, 190, 199, 202, 300})
    EXPECT_NEAR(losses[i - 1].get<double>(), 3, 0.05) << i;
}

TEST_F(Report, RunsOfOneNameAreToldApartByTheirPaths) {
  for (const char* run : {"a/run", "b/run"}) {
    fs::create_directories(folder / run);
    write(std::string(run) + "/metrics.jsonl", step(1, "5"));
  }
  const auto file = folder / "both.html";
  write_report({(folder / "a/run").string(), (folder / "b/run").string()}, file.string());
  EXPECT_EQ(data_in(read_file(file, 1 << 24))["runs"][0]["name"], (folder / "a/run").string());
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

}  // namespace
}  // namespace llamesh::app
