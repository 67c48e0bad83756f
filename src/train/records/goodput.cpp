#include "train/records/goodput.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "core/slurm/own_job.hpp"

namespace llamesh::train {
namespace {

void add(std::optional<double>& to, double seconds) {
  to = to.value_or(0) + std::max(0.0, seconds);
}

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c); });
}

}  // namespace

std::vector<std::pair<std::string, double>> Goodput::parts() const {
  std::vector<std::pair<std::string, double>> parts{{"productive", productive},
                                                    {"repeated", repeated},
                                                    {"saving", saving},
                                                    {"starting", starting},
                                                    {"other", other}};
  if (diagnosing) parts.emplace_back("diagnosing", *diagnosing);
  if (waiting) parts.emplace_back("waiting", *waiting);
  return parts;
}

double Goodput::whole() const {
  double sum = 0;
  for (const auto& [name, seconds] : parts()) sum += seconds;
  return sum;
}

std::optional<double> Goodput::share() const {
  if (whole() <= 0) return {};
  return productive / whole();
}

nlohmann::ordered_json to_json(const Goodput& goodput) {
  nlohmann::ordered_json json;
  for (const auto& [name, seconds] : goodput.parts()) json[name] = std::round(1e3 * seconds) / 1e3;
  if (const auto share = goodput.share()) json["share"] = *share;
  return json;
}

std::optional<Goodput> parse_goodput(const nlohmann::json& json) {
  if (!json.is_object()) return {};
  bool is_good = true;
  const auto read = [&](const char* key) -> std::optional<double> {
    const auto at = json.find(key);
    if (at == json.end()) return {};
    const double value = at->is_number() ? at->get<double>() : -1.0;
    is_good = is_good && std::isfinite(value) && value >= 0;
    return value;
  };
  const Goodput goodput{.productive = read("productive").value_or(0),
                        .repeated = read("repeated").value_or(0),
                        .saving = read("saving").value_or(0),
                        .starting = read("starting").value_or(0),
                        .other = read("other").value_or(0),
                        .diagnosing = read("diagnosing"),
                        .waiting = read("waiting")};
  return is_good ? std::optional(goodput) : std::nullopt;
}

std::optional<double> parse_utc(const std::string& text) {
  std::tm time{};
  const char* end = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &time);
  if (end == nullptr || *end != '\0') return {};
  return static_cast<double>(timegm(&time));
}

void add_gap(Goodput& goodput, const Gap& gap) {
  if (gap.same_allocation && gap.ended)
    goodput.starting += std::max(0.0, gap.launched - *gap.ended);
  if (!gap.last_step) return;
  if (gap.ended && gap.has_faulty_rank)
    add(goodput.diagnosing, *gap.ended - *gap.last_step);
  else if (gap.same_allocation && !gap.ended)
    add(goodput.diagnosing, gap.launched - *gap.last_step);
}

std::optional<double> time_in_queue(double from) {
  std::istringstream answer(ask_squeue("%V %S"));
  std::string submitted, started;
  if (!(answer >> submitted >> started) || !is_number(submitted) || !is_number(started)) return {};
  return std::max(0.0, std::stod(started) - std::max(from, std::stod(submitted)));
}

}  // namespace llamesh::train
