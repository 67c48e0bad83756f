#include "train/engine/models.hpp"

#include <numeric>

#include "sharding/mesh_expert_parallel.hpp"
#include "train/engine/pipeline.hpp"
#include "train/setup/virtual_ranks.hpp"

namespace llamesh::train {
namespace {

model::DataRanks data_ranks(const Setup& setup, comm::DeviceMesh& mesh) {
  if (setup.inputs.model.num_experts == 0) return {};
  auto ranks = sharding::data_ranks(mesh);
  ranks.in_flight = max_in_flight(setup.pipeline);
  return ranks;
}

/// Returns the virtual ranks for which a rank stands.
std::vector<int> members_of(const Setup& setup, int rank) {
  std::vector<int> members(static_cast<std::size_t>(setup.virtual_ranks()));
  std::iota(members.begin(), members.end(), rank * setup.virtual_ranks());
  return members;
}

}  // namespace

Models::Virtual::Virtual(const Setup& setup, comm::DeviceMesh& mesh, sharding::Fsdp& fsdp)
    : turns(setup.virtual_ranks()),
      tensor(mesh.along(mesh.dims().tensor()), turns, setup.inputs.tensor,
             setup.inputs.train.micro_batch * setup.row_length(), setup.inputs.model.hidden_size,
             setup.inputs.precision.parameters),
      weights(fsdp, *setup.layout, mesh.rank(), *setup.virtual_layout,
              members_of(setup, mesh.rank()), turns) {}

Models::Models(const Setup& setup, comm::DeviceMesh& mesh, const ModelParts& parts)
    : fsdp_(parts.fsdp) {
  check_virtual_ranks_fit(setup.inputs, setup.virtual_ranks());
  if (setup.virtual_layout) virtual_.emplace(setup, mesh, parts.fsdp);
  const auto& in = setup.inputs;
  const auto& layout = setup.virtual_layout ? *setup.virtual_layout : *setup.layout;
  for (int turn = 0; turn < setup.virtual_ranks(); ++turn)
    models_.emplace_back(in.model, layout.local_table(), in.train.micro_batch, setup.row_length(),
                         in.memory, model::Precision{in.precision.parameters, in.precision.linear},
                         virtual_ ? virtual_->tensor.of(turn) : parts.tensor,
                         in.data.pairs ? model::Purpose::train_on_pairs : model::Purpose::train,
                         parts.experts, data_ranks(setup, mesh), parts.context,
                         chunks_of_stage(setup, mesh.rank()));
}

/// Calls compute(model, weights, turn) for each model, by turns.
template <class Compute>
void Models::for_each_turn(const Compute& compute) {
  if (!virtual_) return compute(models_.front(), fsdp_, 0);
  virtual_->turns.run([&](int turn) {
    compute(models_[static_cast<std::size_t>(turn)], virtual_->weights.of(turn), turn);
  });
}

/// Returns a turn's rows of this rank's residual stream.
Tensor Models::part_of_turn(const Tensor& residual, int turn) const {
  if (!virtual_ || !residual) return residual;
  const auto rows = residual.rows() / virtual_->turns.count();
  return residual.slice_rows(turn * rows, rows);
}

void Models::train(const model::Batch& batch, float scale) {
  for_each_turn([&](model::CausalLM& model, model::Weights& weights, int /*turn*/) {
    model.train(weights, batch, scale);
  });
}

void Models::forward(const model::Batch& batch, const model::CausalLM::Place& place,
                     const Tensor& in, const Tensor& out) {
  for_each_turn([&](model::CausalLM& model, model::Weights& weights, int turn) {
    model.forward(weights, batch, place, part_of_turn(in, turn), part_of_turn(out, turn));
  });
}

void Models::backward(const model::Batch& batch, const model::CausalLM::Place& place,
                      const Tensor& gradient, float scale) {
  for_each_turn([&](model::CausalLM& model, model::Weights& weights, int turn) {
    model.backward(weights, batch, place, part_of_turn(gradient, turn), scale);
  });
}

void Models::evaluate(const model::Batch& batch) {
  for_each_turn([&](model::CausalLM& model, model::Weights& weights, int /*turn*/) {
    model.evaluate(weights, batch);
  });
}

void Models::evaluate(const model::Batch& batch, const model::CausalLM::Place& place,
                      const Tensor& in, const Tensor& out) {
  for_each_turn([&](model::CausalLM& model, model::Weights& weights, int turn) {
    model.evaluate(weights, batch, place, part_of_turn(in, turn), part_of_turn(out, turn));
  });
}

std::vector<device::ScopedAllocation> Models::use_activations() const {
  std::vector<device::ScopedAllocation> uses;
  for (const auto& model : models_) uses.push_back(model.use_activations());
  return uses;
}

void Models::begin_step(std::int64_t micro_batches) {
  for (auto& model : models_) model.begin_step(micro_batches);
}

void Models::end_step() {
  for (auto& model : models_) model.end_step();
}

double Models::take_loss() {
  const double loss = models_.front().take_loss();
  for (auto& model : models_) model.take_loss();
  return loss;
}

std::vector<model::PairResult> Models::take_pairs() {
  auto pairs = models_.front().take_pairs();
  for (auto& model : models_) model.take_pairs();
  return pairs;
}

double Models::seconds_exposed_by_copies() const {
  double seconds = 0;
  for (const auto& model : models_) seconds += model.seconds_exposed_by_copies();
  return seconds;
}

}  // namespace llamesh::train
