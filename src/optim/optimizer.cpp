#include "optim/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.hpp"
#include "ops/ops.hpp"
#include "optim/rounding_bits.hpp"

namespace llamesh::optim {

namespace {

bool has_adamw(const model::Parameter& parameter) {
  return !is_hidden_matrix(parameter);
}

/// Calls visit for parts of this rank's gradient shards that together have each model element on
/// only one of the ranks that hold it.
template <class Visit>
void for_each_counted(const sharding::ShardedState& state, const Visit& visit) {
  const auto& layout = state.layout();
  const auto is_first = [&](model::ParameterId id) {  // first among its replicas
    return layout.placement(id).is_first_copy(layout.dims(), state.rank());
  };
  const auto counts_all = [&](const sharding::ShardedState::Group& group) {
    return std::ranges::all_of(group.held, [&](std::size_t u) {
      return std::ranges::all_of(layout.units()[u].parameters, is_first);
    });
  };
  for (const auto& group : state.groups()) {
    if (group.frozen || group.held.empty()) continue;
    if (counts_all(group)) {
      visit(group.gradients);
      continue;
    }
    for (const auto u : group.held)
      for (const auto& piece : layout.pieces(u, state.rank()))
        if (is_first(piece.parameter))
          visit(state.gradients().shards[u].slice(piece.offset, piece.count));
  }
}

}  // namespace

std::vector<sharding::Moment> moments_of(const OptimizerOptions& options) {
  std::vector<sharding::Moment> moments;
  if (options.name == OptimizerName::sgd) {
    moments = {{"momentum"}};
  } else {
    const bool muon = options.name == OptimizerName::muon;
    moments = {{"exp_avg", options.moments},
               {"exp_avg_sq", options.moments, muon ? has_adamw : nullptr}};
  }
  if (options.outer.enabled() && options.outer.error_feedback) moments.push_back({"outer_error"});
  return moments;
}

void check(const OptimizerOptions& options, const sharding::ShardLayout& layout,
           sharding::Offload offload) {
  validate(
      options.name != OptimizerName::sgd || options.moments == DType::f32,
      "optimizer.moments is bf16, but optimizer.name sgd keeps its momentum in fp32; use adamw, "
      "or optimizer.moments=fp32");
  if (options.name == OptimizerName::muon) check_muon(layout, offload);
}

double squared_norm_share(const sharding::ShardedState& state) {
  std::vector<Tensor> counted;
  for_each_counted(state, [&](const Tensor& gradients) { counted.push_back(gradients); });
  return ops::sum_of_squares(state.stream(), counted);
}

ops::SquareUnits square_units_share(const sharding::ShardedState& state, int exponent) {
  ops::SquareUnits sum;
  for_each_counted(state, [&](const Tensor& gradients) {
    sum += ops::square_units(state.stream(), gradients, exponent);
  });
  return sum;
}

float largest_gradient(const sharding::ShardedState& state) {
  float largest = 0;
  for (const auto& group : state.groups()) {
    if (group.frozen || group.held.empty()) continue;
    const float of_group = ops::largest_magnitude(state.stream(), group.gradients);
    if (!(of_group <= largest)) largest = of_group;  // also a NaN
    if (std::isnan(largest)) break;
  }
  return largest;
}

Optimizer::Optimizer(const OptimizerOptions& options, sharding::ShardedState& state,
                     comm::DeviceMesh& mesh, std::uint64_t seed)
    : options_(options), state_(state), seed_(seed) {
  if (options.name == OptimizerName::muon)
    muon_.emplace(options.muon, options.weight_decay, state, mesh);
}

void Optimizer::step(double lr, double norm, std::int64_t step,
                     const std::function<void(std::size_t unit)>& on_updated) {
  const double clip =
      options_.clip_norm > 0 ? std::min(1.0, options_.clip_norm / (norm + 1e-6)) : 1;
  const auto t = static_cast<double>(step);
  ops::AdamwStep adamw{.lr = lr,
                       .beta1 = options_.beta1,
                       .beta2 = options_.beta2,
                       .eps = options_.eps,
                       .weight_decay = 0,
                       .correction1 = 1 - std::pow(options_.beta1, t),
                       .correction2 = 1 - std::pow(options_.beta2, t),
                       .gradient_scale = clip};
  ops::SgdStep sgd{.lr = static_cast<float>(lr),
                   .momentum = static_cast<float>(options_.beta1),
                   .weight_decay = 0,
                   .gradient_scale = static_cast<float>(clip)};
  const auto& layout = state_.layout();
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    if (layout.units()[u].frozen) continue;
    for (const auto& piece : layout.pieces(u, state_.rank())) {
      const auto& parameter = layout.table()[piece.parameter];
      if (muon_ && is_hidden_matrix(parameter)) continue;
      adamw.weight_decay = parameter.decays() ? options_.weight_decay : 0;
      sgd.weight_decay = static_cast<float>(adamw.weight_decay);
      if (options_.name != OptimizerName::sgd)
        update_adamw(u, piece, adamw, step);
      else
        ops::sgd(state_.stream(),
                 {state_.masters().of(u, piece), state_.moments()[0].of(u, piece),
                  state_.gradients().of(u, piece), copy_of(u, piece)},
                 sgd);
    }
    if (!muon_) on_updated(u);
  }
  if (!muon_) return;
  muon_->step(
      options_.muon.lr * lr / options_.lr, clip,
      [&](const sharding::Piece& piece, const VisitRounded& visit) {
        for_each_rounded_range(piece, step, visit);
      },
      on_updated);
}

Tensor Optimizer::copy_of(std::size_t unit, const sharding::Piece& piece) const {
  const auto& copies = state_.weights(unit).copy;
  return copies ? copies.slice(piece.offset, piece.count) : Tensor();
}

void Optimizer::for_each_rounded_range(const sharding::Piece& piece, std::int64_t step,
                                       const VisitRounded& visit) const {
  if (options_.moments == DType::f32) return visit(0, piece.count, {});
  const auto& parameter = state_.layout().table()[piece.parameter];
  for_each_rounded(parameter.shape, state_.layout().range(piece, state_.rank()),
                   rounding_stream(seed_, parameter.name, step), visit);
}

void Optimizer::update_adamw(std::size_t unit, const sharding::Piece& piece,
                             const ops::AdamwStep& step, std::int64_t number) {
  const auto copy = copy_of(unit, piece);
  for_each_rounded_range(
      piece, number, [&](std::int64_t at, std::int64_t count, const ops::RoundingBits& bits) {
        const auto part = [&](const sharding::ShardedTensor& of) {
          return of.of(unit, piece).slice(at, count);
        };
        ops::adamw(state_.stream(),
                   {part(state_.masters()), part(state_.moments()[0]), part(state_.moments()[1]),
                    part(state_.gradients()), copy ? copy.slice(at, count) : Tensor(), bits},
                   step);
      });
}

}  // namespace llamesh::optim
