#include "train/records/step_quantities.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.hpp"
#include "source_file.hpp"
#include "temporary_folder.hpp"
#include "train/records/metrics.hpp"
#include "train/records/run_metrics.hpp"

namespace llamesh::train {
namespace {

StepRecord full_record() {
  StepRecord record{.step = 7,
                    .loss = 1.0 / 3,
                    .grad_norm = 0.1,
                    .lr = 3e-4,
                    .lr_muon = 0.02,
                    .tokens = std::int64_t{1} << 53,
                    .seconds = 0.7,
                    .tokens_per_second = 1e7 / 3,
                    .mfu = 0.45,
                    .utilization = 0.875,
                    .allocated_after_step = 123456789012,
                    .peak = 223456789012,
                    .predicted_allocated_after_step = 123456789013,
                    .predicted_peak = 223456789013,
                    .on_host = 12345678,
                    .predicted_on_host = 12345679,
                    .traffic = {{"replicate", 5}, {"shard", 6}},
                    .traffic_between_nodes = {{"replicate", 5}, {"shard", 0}},
                    .weight_quantization_error = 0.0078125,
                    .gradient_quantization_error = 0.125,
                    .replica_quantization_error = 0.5,
                    .outer_quantization_error = 0.25,
                    .layer_grad_norm = {{"model.layers.0", 1.5}},
                    .layer_weight_norm = {{"model.layers.0", 12}},
                    .seconds_compute = 0.5,
                    .exposed = {{"replicate", 0.125}, {"shard", 0.0625}},
                    .joules = 350.5,
                    .tokens_per_joule = 2.25};
  record.experts = ExpertBalance{.all = {.max_load = 1.5, .entropy = 0.75}, .z_loss = 3.5};
  return record;
}

std::string written(const StepRecord& record) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  MetricsFile(path, 0).write(record);
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

TEST(StepQuantities, AreWrittenInThisOrder) {
  const auto line = written(full_record());
  const auto time = line.find("\"time\":");
  const auto after = line.find(',', time);
  EXPECT_EQ(
      line.substr(0, time),
      R"({"step":7,"loss":0.3333333333333333,"grad_norm":0.1,"lr":0.0003,"lr_muon":0.02,)"
      R"("tokens":9007199254740992,"seconds":0.7,"tokens_per_second":3333333.3333333335,)"
      R"("memory":{"valley":123456789012,"peak":223456789012,)"
      R"("predicted_valley":123456789013,"predicted_peak":223456789013,)"
      R"("host":12345678,"predicted_host":12345679},"traffic":{"replicate":5,"shard":6},)"
      R"("traffic_between_nodes":{"replicate":5,"shard":0},)"
      R"("quantization_error":{"weights":0.0078125,"gradients":0.125,"replicas":0.5,"outer":0.25},)"
      R"("layer_grad_norm":{"model.layers.0":1.5},"layer_weight_norm":{"model.layers.0":12.0},)");
  EXPECT_EQ(line.substr(after),
            R"(,"seconds_compute":0.5,"exposed":{"replicate":0.125,"shard":0.0625},"mfu":0.45,)"
            R"("utilization":0.875,)"
            R"("joules":350.5,"tokens_per_joule":2.25,"experts":{"aux_loss":1.0,"entropy":0.75,)"
            R"("max_load":1.5,"min_load":1.0,"z_loss":3.5}})");
}

TEST(StepQuantities, AreReadBackAsTheyWere) {
  auto record = full_record();
  RunMetrics run;
  const double before = unix_time();
  ASSERT_TRUE(add_line(written(record), run));
  const auto& read = run.steps.at(7);
  EXPECT_GE(read.time, before - 1);
  EXPECT_LE(read.time, unix_time() + 1);
  record.time = read.time;
  for_each_quantity([&](const auto& quantity) {
    SCOPED_TRACE(quantity.key);
    if constexpr (requires { read.*quantity.member == record.*quantity.member; }) {
      EXPECT_EQ(read.*quantity.member, record.*quantity.member);
    }
  });
  EXPECT_EQ(read.experts->all, record.experts->all);
  EXPECT_EQ(read.experts->z_loss, record.experts->z_loss);
}

TEST(StepQuantities, ThatALineLacksAreUnknown) {
  RunMetrics run;
  ASSERT_TRUE(
      add_line(R"({"step":1,"tokens":1e300,"memory":{"peak":-5},"traffic":{"shard":"x"}})", run));
  const auto& read = run.steps.at(1);
  for_each_quantity([&](const auto& quantity) {
    SCOPED_TRACE(quantity.key);
    const auto& value = read.*quantity.member;
    if constexpr (requires { number(value); }) {
      EXPECT_EQ(std::isnan(number(value)), std::string(quantity.key) != "step");
    } else if constexpr (requires { value.empty(); }) {
      EXPECT_TRUE(value.empty());
    } else {
      EXPECT_FALSE(value.has_value());
    }
  });
}

std::string code(const std::string& text) {
  return text.empty() ? "" : fmt::format("`{}`", text);
}

/// Returns what follows a key or a tag if the member has a number per axis, or per name.
template <class T>
std::string parts(const T&) {
  return "";
}
template <class T>
std::string parts(const std::map<std::string, T>&) {
  return "<axis>";
}
std::string parts(const std::optional<ExpertBalance>&) {
  return "<name>";
}

/// Returns the cells of a row in Markdown.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  for (auto at = line.find('|') + 1, end = line.find('|', at); end != line.npos;
       at = end + 1, end = line.find('|', at)) {
    const auto cell = line.substr(at, end - at);
    const auto begin = cell.find_first_not_of(' ');
    cells.push_back(
        begin == cell.npos ? "" : cell.substr(begin, cell.find_last_not_of(' ') + 1 - begin));
  }
  return cells;
}

/// Returns the rows below the header of a table in docs/training.md.
std::vector<std::vector<std::string>> documented(const std::string& header) {
  std::ifstream docs(test::source_file("docs/training.md"));
  std::vector<std::vector<std::string>> rows;
  std::string line;
  while (std::getline(docs, line) && line != header) continue;
  std::getline(docs, line);  // |---|---|
  while (std::getline(docs, line) && line.starts_with("|")) rows.push_back(cells_of(line));
  return rows;
}

TEST(StepQuantities, AreDocumented) {
  std::vector<std::vector<std::string>> expected;
  for_each_quantity([&](const auto& quantity) {
    const bool by_layer = std::string_view(quantity.key).starts_with("layer_");
    const auto part = by_layer ? "<layer>" : parts(StepRecord().*quantity.member);
    const auto tag = std::string(quantity.tag == nullptr ? "" : quantity.tag);
    const auto& [name, place, type] = quantity.gauge;
    const auto gauge = name == nullptr ? ""
                                       : fmt::format("llamesh_{}{}", name,
                                                     type == Gauge::Type::counter ? "_total" : "");
    expected.push_back({code(quantity.key + (part.empty() ? "" : "." + part)), quantity.unit,
                        code(tag + (tag.empty() || part.empty() ? "" : "/" + part)), code(gauge)});
  });
  auto rows = documented("| key | unit | TensorBoard | Prometheus | meaning |");
  for (auto& row : rows) {
    ASSERT_EQ(row.size(), 5U);
    EXPECT_NE(row.back(), "") << row.front();
    row.pop_back();
  }
  EXPECT_EQ(rows, expected);
}

}  // namespace
}  // namespace llamesh::train
