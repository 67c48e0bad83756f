#pragma once

#include <vector>

#include "model/pair_log.hpp"
#include "train/records/step_record.hpp"

namespace llamesh::train {

/// Sums over document pairs, which ranks exchange: trivially copyable.
struct PairSums {
  double pairs = 0;
  double chosen_reward = 0, rejected_reward = 0;
  double accurate = 0;  ///< pairs whose preferred document has the larger reward
  double chosen_log_prob = 0, rejected_log_prob = 0;

  PairSums& operator+=(const PairSums& other);
};

PairSums sum_of(const std::vector<model::PairResult>& results);

/// Sets the record's means over pairs, if there are some.
void set_means(const PairSums& sums, StepRecord& record);

}  // namespace llamesh::train
