#include "train/records/validation_record.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace llamesh::train {
namespace {

Inputs inputs_with(std::int64_t keep_best, std::int64_t patience, double min_delta = 0) {
  Inputs in;
  in.data.validation = {"a"};
  in.checkpoint.keep_best = keep_best;
  in.train.early_stop = {patience, min_delta};
  return in;
}

std::vector<std::int64_t> best_steps(const ValidationRecord& record) {
  std::vector<std::int64_t> steps;
  for (const auto& one : record.best()) steps.push_back(one.step);
  return steps;
}

TEST(ValidationRecord, KeepsTheLowestLosses) {
  ValidationRecord record(inputs_with(2, 0));
  EXPECT_EQ(record.to_text(), "");
  record.observe(10, 3.0);
  record.observe(20, 4.0);
  EXPECT_TRUE(record.is_best(20));
  record.observe(30, 3.5);
  EXPECT_EQ(best_steps(record), (std::vector<std::int64_t>{10, 30}));
  record.observe(40, 3.5);  // the earlier of equal losses stays
  record.observe(50, std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(best_steps(record), (std::vector<std::int64_t>{10, 30}));
  EXPECT_FALSE(record.is_best(50));
  record.observe(60, 1.0);
  EXPECT_EQ(best_steps(record), (std::vector<std::int64_t>{60, 10}));
  EXPECT_FALSE(record.has_stopped_improving());
}

TEST(ValidationRecord, LeavesOutStepsWithoutACheckpoint) {
  ValidationRecord record(inputs_with(4, 0));
  for (const std::int64_t step : {10, 20, 30, 40}) record.observe(step, 1.0);
  const std::vector<std::int64_t> saved{30, 10};
  record.keep_only(saved, 40);
  EXPECT_EQ(best_steps(record), (std::vector<std::int64_t>{10, 30, 40}));
}

TEST(ValidationRecord, KeepsNoneByDefault) {
  ValidationRecord record(inputs_with(0, 0));
  record.observe(10, 3.0);
  EXPECT_FALSE(record.is_best(10));
}

TEST(ValidationRecord, StopsWithoutEnoughImprovement) {
  ValidationRecord record(inputs_with(0, 2, 0.1));
  for (const double loss : {3.0, 2.95, 2.85}) {  // the last by 0.15 since the improvement at 3.0
    EXPECT_FALSE(record.has_stopped_improving());
    record.observe(1, loss);
  }
  EXPECT_FALSE(record.has_stopped_improving());
  record.observe(5, 2.8);
  EXPECT_FALSE(record.has_stopped_improving());
  record.observe(6, 2.76);
  EXPECT_TRUE(record.has_stopped_improving());
  EXPECT_EQ(record.describe_stop(),
            "early stop: the validation loss has not improved by more than 0.1 in 2 evaluations "
            "since step 1 (2.8500)");
}

TEST(ValidationRecord, NaNIsNoImprovement) {
  ValidationRecord record(inputs_with(0, 2));
  record.observe(1, std::numeric_limits<double>::quiet_NaN());
  record.observe(2, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(record.has_stopped_improving());
}

TEST(ValidationRecord, ContinuesFromItsText) {
  const auto in = inputs_with(2, 3);
  ValidationRecord whole(in), first(in);
  const double losses[] = {2.0, 1.0 / 3, 0.7, std::numeric_limits<double>::quiet_NaN(), 0.4};
  for (int i = 0; i < 5; ++i) whole.observe(i, losses[i]);
  for (int i = 0; i < 3; ++i) first.observe(i, losses[i]);
  ValidationRecord second(in);
  EXPECT_EQ(second.restore(first.to_text()), "");
  EXPECT_EQ(second.to_text(), first.to_text());
  for (int i = 3; i < 5; ++i) second.observe(i, losses[i]);
  EXPECT_EQ(second.to_text(), whole.to_text());
  EXPECT_TRUE(second.has_stopped_improving());
  ValidationRecord patient(inputs_with(1, 4));  // with other options
  EXPECT_EQ(patient.restore(first.to_text()), "");
  EXPECT_FALSE(patient.has_stopped_improving());
  EXPECT_EQ(best_steps(patient), (std::vector<std::int64_t>{1}));
}

TEST(ValidationRecord, IgnoresAnotherSetsAndOtherTexts) {
  auto in = inputs_with(1, 1);
  ValidationRecord validation(in);
  validation.observe(1, 2.0);
  in.evaluate.files = {{"code", {"b"}}};
  in.evaluate.best_by = "code";
  ValidationRecord code(in);
  EXPECT_EQ(code.restore(validation.to_text()), "evaluate.best_by is code now");
  for (const char* text : {"{}", "[]", "{\"set\":1}", "x"})
    EXPECT_NE(code.restore(text), "") << text;
  EXPECT_EQ(code.to_text(), "");
  EXPECT_EQ(code.restore(""), "");
  EXPECT_FALSE(parse_validation("").has_value());
  const auto recorded = parse_validation(validation.to_text());
  ASSERT_TRUE(recorded.has_value());
  EXPECT_EQ(recorded->set, "validation");
  EXPECT_EQ(recorded->latest, (StepLoss{1, 2.0}));
}

TEST(ValidationRecord, IgnoresOtherData) {
  const auto in = inputs_with(1, 1);
  ValidationRecord before(in, "1111"), after(in, "2222"), same(in, "1111"), silent(in), older(in);
  before.observe(1, 2.0);
  EXPECT_EQ(after.restore(before.to_text()),
            "this launch evaluates other data of the validation set validation: its tokens, "
            "evaluate.sequences, data.sequence_length or data.document_mask have changed, or the "
            "number of ranks with evaluate.batches");
  EXPECT_EQ(after.to_text(), "");
  EXPECT_EQ(same.restore(before.to_text()), "");
  EXPECT_EQ(same.to_text(), before.to_text());
  // A launch that does not evaluate keeps the data's identity.
  EXPECT_EQ(silent.restore(before.to_text()), "");
  EXPECT_EQ(silent.to_text(), before.to_text());
  // Records of earlier versions have none, and stay valid.
  older.observe(1, 2.0);
  EXPECT_EQ(after.restore(older.to_text()), "");
  EXPECT_EQ(best_steps(after), std::vector<std::int64_t>{1});
}

TEST(ValidationSets, DataValidationIsTheFirst) {
  Inputs in;
  EXPECT_TRUE(in.validation_sets().empty());
  EXPECT_EQ(in.deciding_set(), "");
  in.evaluate.files = {{"wiki", {"w"}}, {"code", {"c"}}};
  EXPECT_EQ(in.deciding_set(), "wiki");
  in.evaluate.best_by = "code";
  EXPECT_EQ(in.deciding_set(), "code");
  in.data.validation = {"v"};
  EXPECT_EQ(in.validation_sets().size(), 3U);
  EXPECT_EQ(in.validation_sets().front().name, "validation");
  in.data.format = data::Format::random;
  EXPECT_EQ(in.validation_sets().size(), 1U);
  EXPECT_EQ(in.deciding_set(), "validation");
}

}  // namespace
}  // namespace llamesh::train
