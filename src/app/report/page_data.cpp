#include "app/report/page_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <ranges>
#include <type_traits>
#include <utility>

#include "app/report/curve.hpp"
#include "config/inputs.hpp"
#include "core/error.hpp"
#include "core/median.hpp"
#include "model/description/parameters.hpp"
#include "train/records/step_quantities.hpp"

namespace llamesh::app {
namespace {

/// Calls use(key, value) for a step's numbers, by their keys in metrics.jsonl.
template <class Use>
class Numbers {
 public:
  /// `with_parts`: also those of one axis, and of experts: "traffic.shard".
  Numbers(bool with_parts, const Use& use) : with_parts_(with_parts), use_(use) {}

  template <class T>
  void add(const std::string& key, const T& number) const {
    use_(key, train::number(number));
  }
  template <class T>
  void add(const std::string& key, const std::map<std::string, T>& by_axis) const {
    if (!with_parts_) return;
    for (const auto& [axis, value] : by_axis) add(fmt::format("{}.{}", key, axis), value);
  }
  void add(const std::string& key, const std::optional<train::ExpertBalance>& experts) const {
    if (!with_parts_ || !experts) return;
    for (const auto& [name, member] : train::expert_loads)
      use_(fmt::format("{}.{}", key, name), experts->all.*member);
    if (experts->z_loss) use_(key + ".z_loss", *experts->z_loss);
  }

 private:
  bool with_parts_;
  const Use& use_;
};

/// Returns true for the quantities that TensorBoard has, and the part of a step without waiting.
bool is_on_page(std::string_view key, const char* tag) {
  return tag != nullptr || key == "seconds_compute";
}

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

/// Returns what the steps record, by key; unknown for a step without it.
std::map<std::string, std::vector<double>> curves_of(const train::RunMetrics& run,
                                                     bool with_parts) {
  std::map<std::string, std::vector<double>> curves;
  for (std::size_t i = 0; const auto& [step, record] : run.steps) {
    const auto add = [&, i](const std::string& key, double value) {
      curves.try_emplace(key, run.steps.size(), unknown).first->second[i] = value;
    };
    const Numbers numbers(with_parts, add);
    train::for_each_quantity([&, &values = record](const auto& quantity) {
      if (is_on_page(quantity.key, quantity.tag))
        numbers.add(quantity.key, values.*quantity.member);
    });
    ++i;
  }
  return curves;
}

/// Returns the values at `points`, rounded to the 5 digits that the page shows, which keeps it
/// small.
template <class T>
Json picked(const std::vector<T>& values, const std::vector<std::size_t>& points) {
  Json json = Json::array();
  for (const std::size_t i : points)
    if constexpr (std::is_integral_v<T>)
      json.push_back(values[i]);
    else
      json.push_back(std::strtod(fmt::format("{:.5g}", values[i]).c_str(), nullptr));
  return json;
}

/// Limits what a page has.
struct Extent {
  bool alone;              ///< one run: also single steps and axes
  std::size_t max_points;  ///< per curve: more than are drawn at once, so that one can zoom
};

Json points_of(const std::vector<std::int64_t>& steps, const std::vector<double>& values,
               const Extent& extent) {
  const auto points = points_to_draw(values, extent.max_points);
  return {{"steps", picked(steps, points)}, {"values", picked(values, points)}};
}

/// Returns a quantity for the page; null if no step has it. `median` skips the first step, which
/// also warms up; `closing` is the mean over the last `span` values.
Json quantity(const std::vector<std::int64_t>& steps, const std::vector<double>& curve,
              std::size_t span, const Extent& extent) {
  std::vector<double> values;
  std::ranges::copy_if(curve, std::back_inserter(values),
                       [](double y) { return std::isfinite(y); });
  if (values.empty()) return nullptr;
  const auto count = std::min(span, values.size());
  const auto sum = [&](std::size_t skipped) {
    return std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(skipped), values.end(),
                           0.0);
  };
  const auto points = points_to_draw(curve, extent.max_points);
  Json json = {{"last", curve.back()},
               {"sum", sum(0)},
               {"max", std::ranges::max(values)},
               {"closing", sum(values.size() - count) / static_cast<double>(count)},
               {"steps", picked(steps, points)},
               {"smooth", picked(smoothed(curve, span), points)}};
  if (extent.alone) json["each"] = picked(curve, points);
  if (values.size() > 2) values.erase(values.begin());
  json["median"] = llamesh::median(std::move(values));
  return json;
}

/// Formats the axes whose sizes the inputs give as a start's line in metrics.jsonl does.
std::string mesh_text(const comm::MeshOptions& mesh) {
  std::string text;
  for (const auto& [axis, size] : {std::pair("replicate", mesh.replicate),
                                   {"shard", mesh.shard},
                                   {"expert", mesh.expert},
                                   {"context", mesh.context},
                                   {"tensor", mesh.tensor}})
    if (size > 1) text += fmt::format("{}{}={}", text.empty() ? "" : " x ", axis, size);
  return text;
}

/// Returns facts from config.yaml; null if this llamesh cannot read it.
Json inputs(const std::string& config) {
  try {
    const auto in = config::parse_inputs(config, "config.yaml");
    return {{"parameters", model::parameter_table(in.model).numel()},
            {"layers", in.model.num_hidden_layers},
            {"hidden", in.model.hidden_size},
            {"heads", in.model.num_attention_heads},
            {"kv_heads", in.model.num_key_value_heads},
            {"vocabulary", in.model.vocab_size},
            {"strategy", sharding::name_of(in.sharding.strategy)},
            {"mesh", mesh_text(in.mesh)},
            {"precision", describe(in.precision)},
            {"notes", in.run.notes},
            {"tags", in.run.tags}};
  } catch (const Error&) {
    return nullptr;
  }
}

Json validation(const std::string& set, const std::map<std::int64_t, double>& losses,
                const Extent& extent) {
  const auto steps = std::views::keys(losses);
  const auto values = std::views::values(losses);
  Json json = points_of({steps.begin(), steps.end()}, {values.begin(), values.end()}, extent);
  json["set"] = set;
  return json;
}

constexpr std::size_t max_samples = 10;  // validations whose texts the page shows

Json samples(const train::RunMetrics& run) {
  Json all = Json::array();
  const auto left_out = run.samples.size() - std::min(max_samples, run.samples.size());
  for (const auto& [step, texts] : run.samples | std::views::drop(left_out)) {
    Json of_step = Json::array();
    for (const auto& [prompt, text] : texts)
      of_step.push_back({{"prompt", prompt}, {"text", text}});
    all.push_back({{"step", step}, {"texts", std::move(of_step)}});
  }
  return all;
}

Json start(const train::RunStart& start) {
  return {{"step", start.step},     {"time", start.time}, {"ranks", start.ranks},
          {"mesh", start.mesh},     {"host", start.host}, {"version", start.version},
          {"commit", start.commit}, {"job", start.job},   {"command", start.command},
          {"phases", start.phases}};
}

Json run_data(const ReportedRun& reported, const Extent& extent) {
  const train::RunMetrics& run = reported.metrics;
  const auto span = smoothing_span(run.steps.size());
  Json validations = Json::array(), starts = Json::array(), metrics = Json::object();
  // The deciding set comes first.
  validations.push_back(validation(run.validation_set, run.validation, extent));
  for (const auto& [set, losses] : run.other_validation)
    validations.push_back(validation(set, losses, extent));
  for (const auto& one : run.starts) starts.push_back(start(one));
  std::vector<std::int64_t> steps;
  std::vector<double> times, tokens;
  for (const auto& [step, recorded] : run.steps) {
    steps.push_back(step);
    times.push_back(recorded.elapsed);
    tokens.push_back(train::number(recorded.tokens));
  }
  for (const auto& [key, curve] : curves_of(run, extent.alone))
    if (auto json = quantity(steps, curve, span, extent); !json.is_null())
      metrics[key] = std::move(json);
  Json json = {{"name", reported.name},
               {"inputs", inputs(reported.config)},
               {"step", steps.back()},
               {"span", span},
               {"metrics", std::move(metrics)},
               {"clock", points_of(steps, times, extent)},
               {"tokens", points_of(steps, tokens, extent)},
               {"validation", std::move(validations)},
               {"early_stop", run.early_stop.has_value()},
               {"starts", std::move(starts)},
               {"resumes", run.resumes},
               {"skipped", run.skipped},
               {"spikes", run.spikes},
               {"checkpoints", run.checkpoints},
               {"unreadable", run.unreadable}};
  if (reported.goodput) json["goodput"] = reported.goodput->parts();
  if (extent.alone) {
    json["config"] = reported.config;
    json["samples"] = samples(run);
  }
  return json;
}

}  // namespace

Json page_data(const std::vector<ReportedRun>& runs, int refresh) {
  Json json = {{"runs", Json::array()}, {"differences", Json::array()}, {"refresh", refresh}};
  std::vector<std::string> configs;
  const Extent extent{.alone = runs.size() == 1,
                      .max_points = std::clamp<std::size_t>(16'000 / runs.size(), 800, 4000)};
  for (const auto& run : runs) {
    json["runs"].push_back(run_data(run, extent));
    configs.push_back(run.config);
  }
  for (const auto& [key, values] : config_differences(configs))
    json["differences"].push_back({{"key", key}, {"values", values}});
  return json;
}

}  // namespace llamesh::app
