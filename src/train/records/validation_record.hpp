#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "train/records/run_state.hpp"
#include "train/setup/run_inputs.hpp"

namespace llamesh::train {

/// History of the validation losses that decide which checkpoints are kept (checkpoint.keep_best)
/// and when the run ends (train.early_stop): those for the set evaluate.best_by. It is part of the
/// training state, so a resumed run decides as if it had not been interrupted. Loss values must be
/// the same on every rank; then so are all answers.
class ValidationRecord {
 public:
  /// `data` identifies what the losses are computed on, apart from the model; empty: not known.
  explicit ValidationRecord(const Inputs& inputs, std::string data = {});

  /// Takes over the record from a checkpoint, to_text(). Ignores a record for another set or other
  /// data, and one that cannot be read. Returns why, for the user; empty if it is taken over.
  std::string restore(const std::string& text);
  /// Drops best evaluations without a checkpoint, whose step is neither in `saved` nor `resumed`: a
  /// save may not have finished before the run's end.
  void keep_only(std::span<const std::int64_t> saved, std::int64_t resumed);
  /// Adds an evaluation. NaN is worse than any loss.
  void observe(std::int64_t step, double loss);

  /// Returns the `keep_best` best evaluations, lowest loss first, earlier steps first if equal.
  const std::vector<StepLoss>& best() const { return best_; }
  /// Returns true if the evaluation after `step` is one of those: its checkpoint is to be saved.
  bool is_best(std::int64_t step) const;
  /// Returns the latest evaluation, if there is one.
  const std::optional<StepLoss>& latest() const { return latest_; }
  /// Returns true if `patience` evaluations in a row were no improvement: the loss was not lower by
  /// more than `min_delta` than at the last improvement (as in Keras and Lightning).
  bool has_stopped_improving() const;
  /// Describes why has_stopped_improving(), in one line.
  std::string describe_stop() const;

  /// Serializes to one line of JSON; empty before the first evaluation.
  std::string to_text() const;

 private:
  std::string set_;
  std::string data_;
  std::size_t keep_best_;
  EarlyStopOptions early_stop_;
  std::vector<StepLoss> best_;
  std::optional<StepLoss> latest_;
  std::optional<StepLoss> improvement_;   ///< the last one
  std::int64_t without_improvement_ = 0;  ///< evaluations since then
};

/// Evaluation recorded in a checkpoint.
struct RecordedValidation {
  std::string set;
  StepLoss latest;
  std::vector<StepLoss> best;
};

/// Parses ValidationRecord::to_text(); empty if `text` is not one.
std::optional<RecordedValidation> parse_validation(const std::string& text);

}  // namespace llamesh::train
