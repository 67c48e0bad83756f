#pragma once

#include <array>
#include <vector>

#include "model/host_copies.hpp"

namespace llamesh::model {

/// Numbers of a document pair, those with two parts of the preferred one first.
struct PairResult {
  float loss = 0;
  std::array<float, 2> log_probs = {};  ///< nats, summed over the tokens in the loss
  std::array<float, 2> rewards = {};    ///< beta (log p - log p under the reference model)
};

/// List of pairs' results, on the host.
class PairLog {
 public:
  /// Adds a micro-batch's pairs, ops::PairLossCall::results (HostCopies::add).
  void add(device::Stream& stream, const Tensor& results) { arrivals_.add(stream, results); }
  /// Waits for everything added since the last call and returns it, in order.
  std::vector<PairResult> take();

 private:
  std::vector<PairResult> pairs_;
  HostCopies arrivals_{[this](std::span<const float> results) { add(results); }};

  void add(std::span<const float> results);
};

}  // namespace llamesh::model
