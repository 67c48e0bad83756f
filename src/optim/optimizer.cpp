#include "optim/optimizer.hpp"

#include <algorithm>
#include <cmath>

#include "ops/ops.hpp"

namespace llamesh::optim {

std::vector<std::string> moments_of(OptimizerName optimizer) {
  if (optimizer == OptimizerName::sgd) return {"momentum"};
  return {"exp_avg", "exp_avg_sq"};
}

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
    if (group.frozen) continue;
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
  auto& stream = state_.stream();
  const auto& layout = state_.layout();
  const auto& moments = state_.moments();
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    if (layout.units()[u].frozen) continue;
    for (const auto& piece : layout.pieces(u, state_.rank())) {
      const auto part = [&](const sharding::ShardedTensor& of) {
        return of.shards[u].slice(piece.offset, piece.count);
      };
      const auto& copies = state_.weights(u).copy;
      const auto copy = copies ? copies.slice(piece.offset, piece.count) : Tensor();
      const bool decays = layout.table()[piece.parameter].decays();
      adamw.weight_decay = decays ? options_.weight_decay : 0;
      sgd.weight_decay = static_cast<float>(adamw.weight_decay);
      if (options_.name == OptimizerName::adamw)
        ops::adamw(stream,
                   {part(state_.masters()), part(moments[0]), part(moments[1]),
                    part(state_.gradients()), copy},
                   adamw);
      else
        ops::sgd(stream, {part(state_.masters()), part(moments[0]), part(state_.gradients()), copy},
                 sgd);
    }
    on_updated(u);
  }
}

}  // namespace llamesh::optim
