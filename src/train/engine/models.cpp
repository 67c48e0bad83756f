#include "train/engine/models.hpp"

#include <algorithm>
#include <functional>

#include "device/device.hpp"
#include "sharding/mesh_expert_parallel.hpp"
#include "train/engine/pipeline.hpp"
#include "train/setup/virtual_ranks.hpp"

namespace llamesh::train {
namespace {

/// Tensors of a batch with a number for each token.
constexpr std::int64_t token_tensors = 4;

model::DataRanks data_ranks(const Setup& setup, comm::DeviceMesh& mesh) {
  if (setup.inputs.model.num_experts == 0) return {};
  auto ranks = sharding::data_ranks(mesh);
  ranks.in_flight = max_in_flight(setup.pipeline);
  ranks.count *= setup.virtual_ranks.context;
  return ranks;
}

}  // namespace

Models::Virtual::Virtual(const Setup& setup, comm::DeviceMesh& mesh, sharding::Fsdp& fsdp)
    : ranks(setup.virtual_ranks),
      turns(ranks.count()),
      context(mesh.along(mesh.dims().context()), turns, ranks,
              sharding::context_shape(setup.inputs.model, setup.inputs.train.reproducible_tensor,
                                      setup.inputs.train.micro_batch,
                                      setup.row_length() / ranks.context,
                                      setup.inputs.precision.parameters, 2 * setup.max_pairs())),
      weights(fsdp, *setup.layout, mesh.rank(), *setup.virtual_layout, ranks,
              members_of(setup.mesh, ranks, mesh.rank()), turns) {
  const auto& in = setup.inputs;
  if (in.train.reproducible_tensor > 1)
    for (int i = 0; i < ranks.context; ++i)
      tensor.emplace_back(mesh.along(mesh.dims().tensor()), turns, ranks.tensor, in.tensor,
                          in.train.micro_batch * setup.row_length() / ranks.context,
                          in.model.hidden_size, in.precision.parameters);
  tokens = device::Buffer(token_tensors * setup.row_length() * size_of(DType::i32));
}

model::TensorParallel& Models::Virtual::tensor_of(int turn) {
  if (tensor.empty()) return model::one_rank();
  return tensor[static_cast<std::size_t>(ranks.context_of(turn))].of(ranks.tensor_of(turn));
}

Models::Models(const Setup& setup, comm::DeviceMesh& mesh, const ModelParts& parts)
    : fsdp_(parts.fsdp) {
  if (setup.virtual_layout) virtual_.emplace(setup, mesh, parts.fsdp);
  const auto& in = setup.inputs;
  const auto& layout = setup.virtual_layout ? *setup.virtual_layout : *setup.layout;
  const bool has_context = in.train.reproducible_context > 1;
  for (int turn = 0; turn < setup.virtual_ranks.count(); ++turn)
    models_.emplace_back(in.model, layout.local_table(), in.train.micro_batch,
                         setup.row_length() / setup.virtual_ranks.context, in.memory,
                         model::Precision{in.precision.parameters, in.precision.linear},
                         virtual_ ? virtual_->tensor_of(turn) : parts.tensor,
                         in.data.pairs ? model::Purpose::train_on_pairs : model::Purpose::train,
                         parts.experts, data_ranks(setup, mesh),
                         virtual_ && has_context ? virtual_->context.of(turn) : parts.context,
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

/// Returns a turn's tokens in a batch, which has a single sequence. This rank's row has two runs,
/// and each turn a piece of both: from the first one's start on, and from the second one's end.
model::Batch Models::batch_of_turn(const model::Batch& batch, int turn) {
  if (!virtual_ || virtual_->ranks.context == 1) return batch;
  const int place = virtual_->ranks.context_of(turn);
  const auto whole = batch.tokens.numel();
  const auto length = whole / virtual_->ranks.context, piece = length / 2;
  auto& stream = device::compute_stream();
  model::Batch mine = batch;
  std::int64_t number = place * token_tensors;
  for (Tensor* const tokens :
       {&mine.tokens, &mine.targets, &mine.document_starts, &mine.pairs.documents}) {
    const auto offset = number++ * length * size_of(DType::i32);
    if (!*tokens) continue;
    const Tensor all = *tokens;
    *tokens = virtual_->tokens.tensor(DType::i32, {1, length}, offset);
    device::copy_bytes(stream, tokens->slice(0, piece), all.slice(place * piece, piece));
    device::copy_bytes(stream, tokens->slice(piece, piece),
                       all.slice(whole - (place + 1) * piece, piece));
  }
  return mine;
}

/// Returns a turn's rows of this rank's residual stream.
Tensor Models::part_of_turn(const Tensor& residual, int turn) const {
  if (!virtual_ || !residual) return residual;
  const auto rows = residual.rows() / virtual_->turns.count();
  return residual.slice_rows(turn * rows, rows);
}

void Models::train(const model::Batch& batch, float scale) {
  for_each_turn([&](model::CausalLM& model, model::Weights& weights, int turn) {
    model.train(weights, batch_of_turn(batch, turn), scale);
  });
}

void Models::forward(const model::Batch& batch, const model::CausalLM::Place& place,
                     const Tensor& in, const Tensor& out) {
  for_each_turn([&](model::CausalLM& model, model::Weights& weights, int turn) {
    model.forward(weights, batch_of_turn(batch, turn), place, part_of_turn(in, turn),
                  part_of_turn(out, turn));
  });
}

void Models::backward(const model::Batch& batch, const model::CausalLM::Place& place,
                      const Tensor& gradient, float scale) {
  for_each_turn([&](model::CausalLM& model, model::Weights& weights, int turn) {
    model.backward(weights, batch_of_turn(batch, turn), place, part_of_turn(gradient, turn), scale);
  });
}

void Models::evaluate(const model::Batch& batch) {
  for_each_turn([&](model::CausalLM& model, model::Weights& weights, int turn) {
    model.evaluate(weights, batch_of_turn(batch, turn));
  });
}

void Models::evaluate(const model::Batch& batch, const model::CausalLM::Place& place,
                      const Tensor& in, const Tensor& out) {
  for_each_turn([&](model::CausalLM& model, model::Weights& weights, int turn) {
    model.evaluate(weights, batch_of_turn(batch, turn), place, part_of_turn(in, turn),
                   part_of_turn(out, turn));
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

double Models::loss_so_far() {
  double loss = 0;
  for (std::size_t turn = 0; turn < models_.size(); turn += turns_with_same_tokens())
    loss += models_[turn].loss_so_far();
  return loss;
}

double Models::take_loss() {
  const double loss = loss_so_far();
  for (auto& model : models_) model.take_loss();
  return loss;
}

model::RouterSums Models::take_router_sums() {
  const auto add = [](std::vector<float>& sums, const std::vector<float>& more) {
    std::ranges::transform(sums, more, sums.begin(), std::plus());
  };
  auto sums = models_.front().take_router_sums();
  for (auto turn = turns_with_same_tokens(); turn < models_.size();
       turn += turns_with_same_tokens()) {
    const auto more = models_[turn].take_router_sums();
    add(sums.counts, more.counts);
    add(sums.probabilities, more.probabilities);
    add(sums.squares, more.squares);
  }
  return sums;
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
