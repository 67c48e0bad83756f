#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/tensor.hpp"
#include "device/buffer.hpp"
#include "device/stream.hpp"
#include "model/description/model_config.hpp"
#include "model/description/parameters.hpp"
#include "ops/calls.hpp"

/// L layers with experts, N experts in each of which a token takes k.
namespace llamesh::model {

/// Ranks that read different data, as the model sees them. sharding::data_ranks() has them over a
/// mesh; by default there is one.
struct DataRanks {
  int count = 1;
  /// Micro-batches that are between their forward and backward pass on any of them.
  int in_flight = 1;
  /// Sets a tensor (fp32) to its sum over these ranks, after the work in the compute stream.
  std::function<device::Event(const Tensor&)> sum = {};
  /// Returns memory for what is summed. Collective, with equal sizes.
  std::function<device::Buffer(std::int64_t bytes)> allocate = [](std::int64_t bytes) {
    return device::Buffer(bytes);
  };
};

/// Sums over the tokens of a step, on the host.
struct RouterSums {
  std::vector<std::size_t> layers;   ///< (L) numbers of the layers that have experts
  std::int64_t experts = 0;          ///< N
  std::int64_t experts_per_tok = 0;  ///< k
  std::int64_t tokens = 0;
  std::vector<float> counts;         ///< (L, N) tokens that take each expert
  std::vector<float> probabilities;  ///< (L, N)
  std::vector<float> squares;        ///< (L) of the logits' log-sum-exp; 0 without the z-loss

  /// Returns the sums of the i-th of these layers alone.
  RouterSums layer(std::size_t i) const;
};

/// Returns N * sum_e f_e P_e (RouterBalance) over the layers and tokens that were summed, without
/// its coefficient. k if all experts are equally probable and get as many tokens. With sigmoid
/// routers, P_e is an expert's share of all scores.
double load_balancing_loss(const RouterSums& sums);
/// Returns the mean of log_sum_exp(logits)^2, without its coefficient.
double z_loss(const RouterSums& sums);

/// Sums over the choices of all routers in a step, and the losses on them, which are added to the
/// cross-entropy:
///
/// - load balancing (Fedus et al. 2022, pooled over layers as transformers does):
///   router_aux_loss_coef * N * sum_e f_e P_e, if output_router_logits is set. f_e is the mean
///   number of times that a token takes expert e, P_e the mean probability of e, over all layers
///   and tokens of the step;
/// - z (Zoph et al. 2022): router_z_loss_coef * mean of log_sum_exp(logits)^2.
///
/// Both are means over the step's tokens on all ranks, so gradients of micro-batches and ranks add
/// up. f_e, which has no gradient, counts over all ranks that read different data and over the
/// step's micro-batches so far (Qiu et al. 2025).
class RouterBalance {
 public:
  /// Counts nothing if `table` has no router. A micro-batch has `tokens` tokens. `adds`: whether
  /// this rank adds the losses' gradients: one of several tensor ranks, whose gradients of a router
  /// are summed.
  RouterBalance(const ModelConfig& config, const ParameterTable& table, std::int64_t tokens,
                DataRanks ranks, bool adds);

  /// Begins a step with so many micro-batches. Without a call, each micro-batch is a step.
  void begin_step(std::int64_t micro_batches);
  /// Returns the number of the micro-batch that begins next, from 0.
  std::int64_t next_micro_batch() const { return begun_ == micro_batches_ ? 0 : begun_; }
  /// Begins the forward pass of the next micro-batch through this rank's first layers.
  void begin_forward(device::Stream& stream);
  /// Adds the routes that router `index` of L has chosen in the forward pass.
  void add(device::Stream& stream, std::int64_t index, const ops::RouteCall& routes);
  /// Notes that a micro-batch has passed the layers [first, last). Each layer is passed by the
  /// step's micro-batches in order.
  void end_layers(device::Stream& stream, std::int64_t micro_batch, std::size_t first,
                  std::size_t last);
  /// Ends its forward pass through this rank's layers: starts to sum their counts so far over the
  /// ranks.
  void end_forward(std::int64_t micro_batch);
  /// Begins its backward pass through some of these layers: waits for the counts.
  void begin_backward(device::Stream& stream, std::int64_t micro_batch);
  /// Ends a step: sums over the ranks. Collective over them, as is end_forward().
  void end_step(device::Stream& stream);

  /// Returns the load-balancing loss's gradient of each token's probabilities, (N) fp32; empty
  /// without that loss.
  Tensor dprobabilities() const { return has_aux_loss() ? pooled_[current_].counts : Tensor(); }
  /// Returns the z-loss's factor for ops::route_backward().
  float z_factor() const;
  /// Returns the step's sums after end_step(). Waits for the device. Empty without experts.
  RouterSums take(device::Stream& stream);

 private:
  std::int64_t layers() const { return std::ssize(layers_); }
  bool has_aux_loss() const { return aux_loss_ > 0 && !layers_.empty(); }
  Tensor counts() const;
  Tensor probabilities() const;
  Tensor squares() const;
  /// What the load-balancing loss takes of a micro-batch in flight.
  struct Pooled {
    Tensor counts;             ///< (N) over the micro-batches so far; in a backward pass, factors
    device::Event over_ranks;  ///< when they are summed over the ranks
    bool is_begun = false;     ///< from the first layers' forward pass to the last ones' backward
  };
  std::size_t slot_of(std::int64_t micro_batch) const {
    return static_cast<std::size_t>(micro_batch) % pooled_.size();
  }
  Tensor slice(std::int64_t first, std::int64_t count) const;

  std::vector<std::size_t> layers_;
  std::int64_t experts_, per_token_, tokens_;
  double aux_loss_, z_loss_;  ///< coefficients
  DataRanks ranks_;
  bool adds_;
  std::int64_t micro_batches_ = 1, begun_ = 0;
  device::Buffer sums_;  ///< counts, probabilities, squares, and the pooled counts
  std::vector<Pooled> pooled_;
  std::size_t current_ = 0;  ///< of the backward pass
};

}  // namespace llamesh::model
