#include "train/records/pair_means.hpp"

#include "core/nan_sign.hpp"

namespace llamesh::train {

PairSums& PairSums::operator+=(const PairSums& other) {
  pairs += other.pairs;
  chosen_reward += other.chosen_reward;
  rejected_reward += other.rejected_reward;
  accurate += other.accurate;
  chosen_log_prob += other.chosen_log_prob;
  rejected_log_prob += other.rejected_log_prob;
  return *this;
}

PairSums sum_of(const std::vector<model::PairResult>& results) {
  PairSums sums;
  for (const auto& [loss, log_probs, rewards] : results)
    sums += {.pairs = 1,
             .chosen_reward = rewards[0],
             .rejected_reward = rewards[1],
             .accurate = rewards[0] > rewards[1] ? 1.0 : 0.0,
             .chosen_log_prob = log_probs[0],
             .rejected_log_prob = log_probs[1]};
  return sums;
}

void set_means(const PairSums& sums, StepRecord& record) {
  if (sums.pairs == 0) return;
  const auto mean = [&](double sum) { return without_nan_sign(sum / sums.pairs); };
  record.chosen_reward = mean(sums.chosen_reward);
  record.rejected_reward = mean(sums.rejected_reward);
  record.reward_margin = mean(sums.chosen_reward - sums.rejected_reward);
  record.reward_accuracy = mean(sums.accurate);
  record.chosen_log_prob = mean(sums.chosen_log_prob);
  record.rejected_log_prob = mean(sums.rejected_log_prob);
}

}  // namespace llamesh::train
