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
  /// Begins a micro-batch's forward pass through this rank's first layers.
  void begin_forward(device::Stream& stream);
  /// Adds the routes that router `index` of L has chosen in the forward pass.
  void add(device::Stream& stream, std::int64_t index, const ops::RouteCall& routes);
  /// Ends a micro-batch's forward pass: starts to sum the counts so far over the ranks.
  void end_forward(device::Stream& stream);
  /// Begins its backward pass: waits for the counts.
  void begin_backward(device::Stream& stream);
  /// Ends a step: sums over the ranks. Collective over them, as is end_forward().
  void end_step(device::Stream& stream);

  /// Returns the load-balancing loss's gradient of each token's probabilities, (N) fp32; empty
  /// without that loss.
  Tensor dprobabilities() const { return has_aux_loss() ? pooled() : Tensor(); }
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
  Tensor pooled() const;
  Tensor slice(std::int64_t first, std::int64_t count) const;

  std::vector<std::size_t> layers_;
  std::int64_t experts_, per_token_, tokens_;
  double aux_loss_, z_loss_;  ///< coefficients
  DataRanks ranks_;
  bool adds_;
  std::int64_t micro_batches_ = 1, begun_ = 0;
  device::Buffer sums_;  ///< counts, probabilities, squares, and the pooled counts
  device::Event pooled_over_ranks_;
};

}  // namespace llamesh::model
