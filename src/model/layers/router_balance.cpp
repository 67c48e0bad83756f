#include "model/layers/router_balance.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "core/error.hpp"
#include "device/device.hpp"
#include "ops/ops.hpp"

namespace llamesh::model {
namespace {

std::vector<std::size_t> layers_with_experts(const ParameterTable& table) {
  std::vector<std::size_t> layers;
  for (const auto& p : table.parameters) {
    if (p.role != Role::router || !p.is_matrix()) continue;
    const auto layer = std::ranges::find_if(
        table.layers, [&](ModuleId id) { return p.name.starts_with(table[id].name + '.'); });
    layers.push_back(static_cast<std::size_t>(layer - table.layers.begin()));
  }
  return layers;
}

}  // namespace

RouterSums RouterSums::layer(std::size_t i) const {
  const auto part = [&](const std::vector<float>& values) {
    const auto size = values.size() / layers.size();
    const auto of_layer = std::span(values).subspan(i * size, size);
    return std::vector(of_layer.begin(), of_layer.end());
  };
  return {.layers = {layers[i]},
          .experts = experts,
          .experts_per_tok = experts_per_tok,
          .tokens = tokens,
          .counts = part(counts),
          .probabilities = part(probabilities),
          .squares = part(squares)};
}

double load_balancing_loss(const RouterSums& sums) {
  const auto experts = static_cast<std::size_t>(sums.experts);
  std::vector<double> counts(experts), probabilities(experts);
  for (std::size_t i = 0; i < sums.counts.size(); ++i) {
    counts[i % experts] += sums.counts[i];
    probabilities[i % experts] += sums.probabilities[i];
  }
  const double tokens = static_cast<double>(sums.tokens) * static_cast<double>(sums.layers.size());
  const double scores = std::accumulate(probabilities.begin(), probabilities.end(), 0.0);
  if (scores == 0) return 0;
  return static_cast<double>(experts) / tokens / scores *
         std::inner_product(counts.begin(), counts.end(), probabilities.begin(), 0.0);
}

double z_loss(const RouterSums& sums) {
  return std::accumulate(sums.squares.begin(), sums.squares.end(), 0.0) /
         static_cast<double>(sums.tokens) / static_cast<double>(sums.layers.size());
}

RouterBalance::RouterBalance(const ModelConfig& config, const ParameterTable& table,
                             std::int64_t tokens, DataRanks ranks, bool adds)
    : layers_(layers_with_experts(table)),
      experts_(config.num_experts),
      per_token_(config.num_experts_per_tok),
      tokens_(tokens),
      aux_loss_(config.output_router_logits ? config.router_aux_loss_coef : 0),
      z_loss_(config.router_z_loss_coef),
      ranks_(std::move(ranks)),
      adds_(adds) {
  if (layers_.empty()) return;
  const auto sums = layers() * (2 * experts_ + 1);
  sums_ = ranks_.allocate((sums + ranks_.in_flight * experts_) * size_of(DType::f32));
  for (int i = 0; i < ranks_.in_flight; ++i)
    pooled_.push_back({slice(sums + i * experts_, experts_), {}, false});
}

Tensor RouterBalance::slice(std::int64_t first, std::int64_t count) const {
  return sums_.tensor(DType::f32, {count}, first * size_of(DType::f32));
}

Tensor RouterBalance::counts() const {
  return slice(0, layers() * experts_).reshape({layers(), experts_});
}

Tensor RouterBalance::probabilities() const {
  return slice(layers() * experts_, layers() * experts_).reshape({layers(), experts_});
}

Tensor RouterBalance::squares() const {
  return slice(2 * layers() * experts_, layers());
}

void RouterBalance::begin_step(std::int64_t micro_batches) {
  expects(micro_batches > 0, "a step of {} micro-batches", micro_batches);
  micro_batches_ = micro_batches;
  begun_ = 0;
}

void RouterBalance::begin_forward(device::Stream& stream) {
  if (layers_.empty()) return;
  begun_ = next_micro_batch() + 1;
  if (begun_ == 1) ops::fill(stream, slice(0, layers() * (2 * experts_ + 1)), 0);
}

void RouterBalance::add(device::Stream& stream, std::int64_t index, const ops::RouteCall& routes) {
  expects(0 <= index && index < layers(), "router {} of {}", index, layers());
  ops::sum_routes(stream, routes,
                  {.counts = counts().slice(index * experts_, experts_),
                   .probabilities = probabilities().slice(index * experts_, experts_),
                   .squares = squares().slice(index, 1)});
}

/// The first layers that a micro-batch passes overwrite what an earlier one has left in its slot.
void RouterBalance::end_layers(device::Stream& stream, std::int64_t micro_batch, std::size_t first,
                               std::size_t last) {
  if (!has_aux_loss()) return;
  auto& pooled = pooled_[slot_of(micro_batch)];
  const auto row_of = [&](std::size_t layer) {
    return std::ranges::lower_bound(layers_, layer) - layers_.begin();
  };
  if (!pooled.is_begun) ops::fill(stream, pooled.counts, 0);
  pooled.is_begun = true;
  const auto row = row_of(first), rows = row_of(last) - row;
  if (rows > 0)
    ops::column_sums(stream, pooled.counts, counts().slice_rows(row, rows), Accumulate::yes);
}

void RouterBalance::end_forward(std::int64_t micro_batch) {
  if (!has_aux_loss()) return;
  auto& pooled = pooled_[slot_of(micro_batch)];
  pooled.over_ranks = ranks_.sum ? ranks_.sum(pooled.counts) : device::Event();
}

/// d(aux) / d(a token's p_e) = N f_e / (L tokens of the step), with f_e = count / (L tokens so
/// far).
void RouterBalance::begin_backward(device::Stream& stream, std::int64_t micro_batch) {
  if (!has_aux_loss()) return;
  current_ = slot_of(micro_batch);
  auto& pooled = pooled_[current_];
  if (!std::exchange(pooled.is_begun, false)) return;  // other layers have begun it
  stream.wait(pooled.over_ranks);
  const auto of_micro_batch = static_cast<double>(layers() * tokens_ * ranks_.count);
  const double factor = aux_loss_ * static_cast<double>(experts_) /
                        (of_micro_batch * static_cast<double>(micro_batch + 1)) /
                        (of_micro_batch * static_cast<double>(micro_batches_));
  ops::scale(stream, pooled.counts, adds_ ? static_cast<float>(factor) : 0.0F);
}

float RouterBalance::z_factor() const {
  if (!adds_ || layers_.empty()) return 0;
  return static_cast<float>(
      2 * z_loss_ / static_cast<double>(layers() * tokens_ * ranks_.count * micro_batches_));
}

void RouterBalance::end_step(device::Stream& stream) {
  if (layers_.empty() || !ranks_.sum) return;
  stream.wait(ranks_.sum(slice(0, layers() * (2 * experts_ + 1))));
}

RouterSums RouterBalance::take(device::Stream& stream) {
  if (layers_.empty()) return {};
  const auto on_host = [&](const Tensor& tensor) {
    std::vector<float> values(static_cast<std::size_t>(tensor.numel()));
    device::download(stream, values.data(), tensor);
    return values;
  };
  return {.layers = layers_,
          .experts = experts_,
          .experts_per_tok = per_token_,
          .tokens = tokens_ * ranks_.count * begun_,
          .counts = on_host(counts()),
          .probabilities = on_host(probabilities()),
          .squares = on_host(squares())};
}

}  // namespace llamesh::model
