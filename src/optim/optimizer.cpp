#include "optim/optimizer.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "ops/ops.hpp"
#include "optim/rounding_bits.hpp"

namespace llamesh::optim {

std::vector<sharding::Moment> moments_of(const OptimizerOptions& options) {
  if (options.name == OptimizerName::sgd) return {{"momentum"}};
  return {{"exp_avg", options.moments}, {"exp_avg_sq", options.moments}};
}

void check(const OptimizerOptions& options) {
  validate(
      options.name != OptimizerName::sgd || options.moments == DType::f32,
      "optimizer.moments is bf16, but optimizer.name sgd keeps its momentum in fp32; use adamw, "
      "or optimizer.moments=fp32");
}

namespace {

Tensor part(const sharding::ShardedTensor& of, std::size_t unit, const sharding::Piece& piece) {
  return of.shards[unit].slice(piece.offset, piece.count);
}

}  // namespace

double squared_norm_share(const sharding::ShardedState& state) {
  const auto& layout = state.layout();
  const auto& dims = layout.dims();
  auto& stream = state.stream();
  const auto is_first = [&](model::ParameterId id) {  // first among its replicas
    return dims.rank_in_group(layout.placement(id).replicated(dims), state.rank()) == 0;
  };
  const auto counts_all = [&](const sharding::ShardedState::Group& group) {
    return std::ranges::all_of(group.units, [&](std::size_t u) {
      return std::ranges::all_of(layout.units()[u].parameters, is_first);
    });
  };
  double sum = 0;
  for (const auto& group : state.groups()) {
    if (counts_all(group)) {
      sum += ops::sum_of_squares(stream, group.gradients);
      continue;
    }
    for (const auto u : group.units)
      for (const auto& piece : layout.pieces(u, state.rank()))
        if (is_first(piece.parameter))
          sum += ops::sum_of_squares(stream,
                                     state.gradients().shards[u].slice(piece.offset, piece.count));
  }
  return sum;
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
    for (const auto& piece : layout.pieces(u, state_.rank())) {
      const bool decays = layout.table()[piece.parameter].decays();
      adamw.weight_decay = decays ? options_.weight_decay : 0;
      sgd.weight_decay = static_cast<float>(adamw.weight_decay);
      if (options_.name == OptimizerName::adamw)
        update_adamw(u, piece, adamw, step);
      else
        ops::sgd(state_.stream(),
                 {part(state_.masters(), u, piece), part(state_.moments()[0], u, piece),
                  part(state_.gradients(), u, piece), copy_of(u, piece)},
                 sgd);
    }
    on_updated(u);
  }
}

Tensor Optimizer::copy_of(std::size_t unit, const sharding::Piece& piece) const {
  const auto& copies = state_.weights(unit).copy;
  return copies ? copies.slice(piece.offset, piece.count) : Tensor();
}

void Optimizer::update_adamw(std::size_t unit, const sharding::Piece& piece,
                             const ops::AdamwStep& step, std::int64_t number) {
  const auto& moments = state_.moments();
  const ops::AdamwCall call{part(state_.masters(), unit, piece), part(moments[0], unit, piece),
                            part(moments[1], unit, piece), part(state_.gradients(), unit, piece),
                            copy_of(unit, piece)};
  if (options_.moments == DType::f32) return ops::adamw(state_.stream(), call, step);
  const auto& parameter = state_.layout().table()[piece.parameter];
  const auto range = state_.layout().range(piece, state_.rank());
  for_each_rounded(parameter.shape, range, rounding_stream(seed_, parameter.name, number),
                   [&](std::int64_t at, std::int64_t count, const ops::RoundingBits& bits) {
                     const auto some = [&](const Tensor& of) {
                       return of ? of.slice(at, count) : Tensor();
                     };
                     ops::adamw(state_.stream(),
                                {some(call.parameter), some(call.exp_avg), some(call.exp_avg_sq),
                                 some(call.gradient), some(call.copy), bits},
                                step);
                   });
}

}  // namespace llamesh::optim
