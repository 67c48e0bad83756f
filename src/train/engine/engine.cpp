#include "train/engine/engine.hpp"

#include "ops/thread_independence.hpp"
#include "train/engine/selection_bias.hpp"

namespace llamesh::train {
Engine::Engine(const Setup& setup, comm::DeviceMesh& mesh)
    : mesh(mesh),
      state(*setup.layout, mesh, setup.inputs.precision, optim::moments_of(setup.inputs.optimizer),
            setup.inputs.sharding, optim::outer_tensors_of(setup.inputs.optimizer.outer)),
      fsdp(state, mesh, setup.inputs.sharding, setup.inputs.precision,
           setup.is_mesh_reproducible() ? setup.micro_batches : 1,
           setup.is_mesh_reproducible() ? sharding::PartialSums::When::in_each_micro_batch
                                        : sharding::PartialSums::When::at_the_end),
      tensor(sharding::make_tensor_parallel(
          mesh, setup.inputs.tensor, setup.inputs.train.micro_batch * setup.row_length(),
          setup.inputs.model.hidden_size, setup.inputs.precision.parameters)),
      experts(sharding::make_expert_parallel(mesh, setup.inputs.model)),
      context(sharding::make_context_parallel(
          mesh, sharding::context_shape(
                    setup.inputs.model,
                    mesh.dims().group_size(mesh.dims().tensor()) * setup.virtual_ranks.tensor,
                    setup.inputs.train.micro_batch, setup.row_length(),
                    setup.inputs.precision.parameters, 2 * setup.max_pairs()))),
      optimizer(setup.inputs.optimizer, state, mesh, setup.inputs.run.seed),
      model(setup, mesh, {fsdp, *tensor, *experts, *context}),
      bias_update_rate_(setup.inputs.model.router_bias_update_rate) {
  if (setup.inputs.optimizer.outer.enabled())
    outer.emplace(setup.inputs.optimizer.outer, state, mesh);
  ops::use_thread_independent_products(setup.is_mesh_reproducible());
  if (mesh.dims().group_size(mesh.dims().pipeline()) > 1)
    pipeline.emplace(setup, mesh,
                     tensor->residual({setup.inputs.train.micro_batch * setup.row_length(),
                                       setup.inputs.model.hidden_size}));
}

void Engine::forward_backward(std::span<const model::Batch> micro_batches, float scale,
                              const std::function<void()>& on_micro_batch) {
  model.begin_step(std::ssize(micro_batches));
  if (pipeline) {
    pipeline->train(model, fsdp, micro_batches, scale, on_micro_batch);
  } else {
    sharding::MicroBatch place{.count = std::ssize(micro_batches)};
    for (const auto& batch : micro_batches) {
      fsdp.begin_micro_batch(place);
      ++place.index;
      model.train(batch, scale);
      on_micro_batch();
    }
  }
  fsdp.finish_gradients();
  model.end_step();
}

void Engine::replay(const model::Batch& first, float scale, std::int64_t micro_batches) {
  model.begin_step(micro_batches);
  if (pipeline) return pipeline->replay(model, fsdp, first, scale);
  fsdp.begin_micro_batch({.discarded = true});
  model.train(first, scale);
}

void Engine::evaluate(std::span<const model::Batch> batches) {
  if (pipeline) return pipeline->evaluate(model, fsdp, batches);
  for (const auto& batch : batches) model.evaluate(batch);
}

void Engine::update(double lr, double norm, std::int64_t step) {
  const auto on_updated = [&](std::size_t unit) { fsdp.on_master_weights_updated(unit); };
  optimizer.step(lr, norm, step, on_updated);
  if (bias_update_rate_ > 0)
    shift_selection_biases(state, model.take_router_sums(), bias_update_rate_, on_updated);
}

void Engine::exchange_replicas(std::int64_t step, std::int64_t last_step) {
  if (!outer) return;
  outer->after_step(step, last_step,
                    [&](std::size_t unit) { fsdp.on_master_weights_updated(unit); });
}

}  // namespace llamesh::train
