#include "train/records/validation_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/json.hpp"

namespace llamesh::train {
namespace {

using nlohmann::json;

constexpr std::int64_t last_step = std::numeric_limits<std::int64_t>::max();

/// [step, loss]; a loss that is not finite becomes null.
json to_json(const StepLoss& at) {
  return {at.step, at.loss};
}

StepLoss step_loss_from(const json& from) {
  const auto& loss = from.at(1);
  return {to_integer(from.at(0), 0, last_step),
          loss.is_null() ? std::numeric_limits<double>::quiet_NaN() : loss.get<double>()};
}

std::optional<StepLoss> optional_from(const json& from, const char* key) {
  const auto found = from.find(key);
  if (found == from.end()) return std::nullopt;
  return step_loss_from(*found);
}

RecordedValidation recorded_from(const json& from) {
  RecordedValidation recorded{from.at("set"), step_loss_from(from.at("latest")), {}};
  for (const auto& one : from.at("best")) recorded.best.push_back(step_loss_from(one));
  return recorded;
}

}  // namespace

ValidationRecord::ValidationRecord(const Inputs& inputs, std::string data)
    : set_(inputs.deciding_set()),
      data_(std::move(data)),
      keep_best_(static_cast<std::size_t>(inputs.checkpoint.keep_best)),
      early_stop_(inputs.train.early_stop) {}

std::string ValidationRecord::restore(const std::string& text) {
  if (text.empty()) return "";
  try {
    const json from = parse_json(text, "the validation losses");
    auto recorded = recorded_from(from);
    if (recorded.set != set_) return fmt::format("evaluate.best_by is {} now", set_);
    const auto data = from.value("data", std::string());  // earlier versions did not write it
    if (!data.empty() && !data_.empty() && data != data_)
      return fmt::format(
          "this launch evaluates other data of the validation set {}: its tokens, "
          "evaluate.sequences, data.sequence_length or data.document_mask have changed, or the "
          "number of ranks with evaluate.batches",
          set_);
    const auto improvement = optional_from(from, "improvement");
    const auto without = to_integer(from.at("without_improvement"), 0, last_step);
    best_ = std::move(recorded.best);
    if (best_.size() > keep_best_) best_.resize(keep_best_);
    latest_ = recorded.latest;
    improvement_ = improvement;
    without_improvement_ = without;
    if (data_.empty()) data_ = data;  // this launch does not evaluate, a later one may
    return "";
  } catch (const std::exception&) {
    return "the checkpoint's record of them cannot be read";
  }
}

void ValidationRecord::keep_only(std::span<const std::int64_t> saved, std::int64_t resumed) {
  std::erase_if(best_, [&](const StepLoss& one) {
    return one.step != resumed && std::ranges::find(saved, one.step) == saved.end();
  });
}

void ValidationRecord::observe(std::int64_t step, double loss) {
  latest_ = {step, loss};
  const bool improves =
      !improvement_ ? std::isfinite(loss) : loss < improvement_->loss - early_stop_.min_delta;
  if (improves) improvement_ = latest_;
  without_improvement_ = improves ? 0 : without_improvement_ + 1;
  if (!std::isfinite(loss)) return;
  best_.insert(std::ranges::upper_bound(best_, loss, {}, &StepLoss::loss), *latest_);
  if (best_.size() > keep_best_) best_.pop_back();
}

bool ValidationRecord::is_best(std::int64_t step) const {
  return std::ranges::find(best_, step, &StepLoss::step) != best_.end();
}

bool ValidationRecord::has_stopped_improving() const {
  return early_stop_.patience > 0 && without_improvement_ >= early_stop_.patience;
}

std::string ValidationRecord::describe_stop() const {
  return fmt::format(
      "early stop: the validation loss{} has not improved{} in {} evaluation{}{}",
      set_ == default_validation_set ? "" : fmt::format(" for {}", set_),
      early_stop_.min_delta > 0 ? fmt::format(" by more than {}", early_stop_.min_delta) : "",
      without_improvement_, without_improvement_ == 1 ? "" : "s",
      improvement_ ? fmt::format(" since step {} ({:.4f})", improvement_->step, improvement_->loss)
                   : "");
}

std::string ValidationRecord::to_text() const {
  if (!latest_) return "";
  json best = json::array();
  for (const auto& one : best_) best.push_back(to_json(one));
  json text = {{"set", set_},
               {"latest", to_json(*latest_)},
               {"best", std::move(best)},
               {"without_improvement", without_improvement_}};
  if (!data_.empty()) text["data"] = data_;
  if (improvement_) text["improvement"] = to_json(*improvement_);
  return text.dump();
}

std::optional<RecordedValidation> parse_validation(const std::string& text) {
  if (text.empty()) return std::nullopt;
  try {
    return recorded_from(parse_json(text, "the validation losses"));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace llamesh::train
