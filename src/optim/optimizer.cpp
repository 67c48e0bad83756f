#include "optim/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/ops.hpp"

namespace llamesh::optim {

double squared_gradient_norm(const sharding::Fsdp& fsdp) {
  return ops::sum_of_squares(device::compute_stream(), fsdp.gradients());
}

Optimizer::Optimizer(const OptimizerOptions& options, sharding::Fsdp& fsdp)
    : options_(options), fsdp_(fsdp) {
  if (options.name == OptimizerName::adamw) {
    for (const char* moment : adamw_moments) add_moment(moment);
  } else {
    add_moment(sgd_moment);
  }
}

void Optimizer::add_moment(const char* name) {
  const auto& layout = fsdp_.layout();
  buffers_.emplace_back(layout.shard_numel() * size_of(DType::f32));
  Moment moment{name, {}};
  std::int64_t offset = 0;
  for (const auto& unit : layout.units()) {
    moment.shards.push_back(
        buffers_.back().tensor(DType::f32, {unit.shard_numel}, offset * size_of(DType::f32)));
    offset += unit.shard_numel;
  }
  moments_.push_back(std::move(moment));
}

void Optimizer::step(double lr, double norm, std::int64_t step) {
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
  auto& stream = device::compute_stream();
  const auto& layout = fsdp_.layout();
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    for (const auto& piece : layout.pieces(u, fsdp_.shard_rank())) {
      const auto part = [&](const Tensor& shard) { return shard.slice(piece.offset, piece.count); };
      const bool decays = layout.table()[piece.parameter].is_matrix();
      adamw.weight_decay = decays ? options_.weight_decay : 0;
      sgd.weight_decay = static_cast<float>(adamw.weight_decay);
      const Tensor parameter = part(fsdp_.master(u));
      const Tensor gradient = part(fsdp_.gradient_shard(u));
      const Tensor moment = part(moments_[0].shards[u]);
      if (options_.name == OptimizerName::adamw)
        ops::adamw(stream, parameter, moment, part(moments_[1].shards[u]), gradient, adamw);
      else
        ops::sgd(stream, parameter, moment, gradient, sgd);
    }
  }
  fsdp_.on_master_weights_updated();
}

}  // namespace llamesh::optim
