#include "train/engine/pipeline.hpp"

#include <fmt/format.h>

#include <set>

#include "device/memory_meter.hpp"
#include "ops/ops.hpp"

namespace llamesh::train {
namespace {

using Kind = PipelineAction::Kind;

/// Returns the first coordinate of the pairs (comm::RankGroups) that have a stage and the next one.
int first_of_pair(int stage, int stages) {
  const bool closes_odd_ring = stage == stages - 1 && stages % 2 == 1;
  return closes_odd_ring ? stage : stage % 2;
}

}  // namespace

std::vector<model::LayerRange> chunks_of_stage(const Setup& setup, int rank) {
  const auto& shape = setup.pipeline;
  if (shape.stages == 1) return {};
  const auto actions = pipeline_actions(shape, setup.stage(rank));
  std::vector<model::LayerRange> mine;
  for (int chunk = setup.stage(rank); chunk < shape.all_chunks(); chunk += shape.stages) {
    mine.push_back(setup.chunks[static_cast<std::size_t>(chunk)]);
    mine.back().in_flight = max_in_flight(actions, chunk);
  }
  return mine;
}

Pipeline::Pipeline(const Setup& setup, comm::DeviceMesh& mesh,
                   const model::TensorParallel::MatrixSize& residual)
    : shape_(setup.pipeline),
      stage_(setup.stage(mesh.rank())),
      dtype_(setup.inputs.precision.parameters),
      residual_(residual) {
  const int last = shape_.stages - 1;
  const int before = stage_ == 0 ? last : stage_ - 1;
  const bool closes = shape_.chunks > 1;  // the last stage sends to the first
  std::set<int> pairings;                 // all ranks make all pairs in the same order
  for (int stage = 0; stage < (closes ? shape_.stages : last); ++stage)
    pairings.insert(first_of_pair(stage, shape_.stages));
  const device::ScopedMemoryTag use(device::MemoryUse::activations);
  for (const int first : pairings)
    for (const int number : {1, 2}) {
      auto& axis = mesh.pairs_along(mesh.dims().pipeline(), first, number);
      auto& to_next = number == 1 ? activations_out_ : gradients_in_;
      auto& from_before = number == 1 ? activations_in_ : gradients_out_;
      if (first == first_of_pair(stage_, shape_.stages) && (closes || stage_ < last))
        open(to_next, axis);
      else if (first == first_of_pair(before, shape_.stages) && (closes || stage_ > 0))
        open(from_before, axis);
    }
}

/// Opens a channel to the other rank of a pair, which does so, too.
void Pipeline::open(Channel& channel, comm::DeviceMesh::Axis& axis) {
  const auto numel = residual_.rows * residual_.cols;
  const auto bytes = (numel * size_of(dtype_) + 63) / 64 * 64;
  channel.axis = &axis;
  channel.buffer = axis.collectives->allocate_symmetric(static_cast<std::int64_t>(depth) * bytes);
  for (std::size_t i = 0; i < depth; ++i)
    channel.slots.push_back(
        channel.buffer.tensor(dtype_, {numel}, static_cast<std::int64_t>(i) * bytes));
  channel.moved.resize(depth);
}

/// Objects with which the actions in a pass compute.
struct Pipeline::Passes {
  model::CausalLM& model;
  sharding::Fsdp& fsdp;
  std::span<const model::Batch> batches;
  float scale;
  bool discarded;
  const std::function<void()>& on_micro_batch;
};

void Pipeline::train(model::CausalLM& model, sharding::Fsdp& fsdp,
                     std::span<const model::Batch> micro_batches, float scale,
                     const std::function<void()>& on_micro_batch) {
  auto shape = shape_;
  shape.micro_batches = static_cast<int>(std::ssize(micro_batches));
  run({model, fsdp, micro_batches, scale, /*discarded=*/false, on_micro_batch},
      pipeline_actions(shape, stage_));
}

void Pipeline::replay(model::CausalLM& model, sharding::Fsdp& fsdp, const model::Batch& batch,
                      float scale) {
  auto shape = shape_;
  shape.micro_batches = 1;
  run({model, fsdp, {&batch, 1}, scale, /*discarded=*/true, [] {}},
      pipeline_actions(shape, stage_));
}

void Pipeline::run(const Passes& p, const std::vector<PipelineAction>& actions) {
  const auto use = p.model.use_activations();
  for (const auto& action : actions) {
    const auto& batch = p.batches[static_cast<std::size_t>(action.micro_batch)];
    const model::CausalLM::Place place{action.chunk / shape_.stages, action.micro_batch};
    const bool is_first = action.chunk == 0, is_last = action.chunk == shape_.all_chunks() - 1;
    p.fsdp.begin_micro_batch(
        {.index = action.micro_batch, .count = std::ssize(p.batches), .discarded = p.discarded});
    switch (action.kind) {
      case Kind::forward:
        p.model.forward(p.fsdp, batch, place, is_first ? Tensor() : received(activations_in_),
                        is_last ? Tensor() : free_slot(activations_out_));
        break;
      case Kind::backward: {
        const Tensor gradient = is_last ? Tensor() : received(gradients_in_);
        const Tensor to = is_first ? gradient : free_slot(gradients_out_);
        if (gradient && !is_first) ops::copy(compute_, to, gradient);
        p.model.backward(p.fsdp, batch, place, to, p.scale);
        if (place.chunk == 0) p.on_micro_batch();
        break;
      }
      case Kind::receive_activations:
        receive(activations_in_, subject_of(action));
        break;
      case Kind::send_activations:
        send(activations_out_, subject_of(action));
        break;
      case Kind::receive_gradients:
        receive(gradients_in_, subject_of(action));
        break;
      case Kind::send_gradients:
        send(gradients_out_, subject_of(action));
        break;
    }
  }
}

void Pipeline::evaluate(model::CausalLM& model, sharding::Fsdp& fsdp, const model::Batch& batch) {
  const auto use = model.use_activations();
  for (int chunk = stage_; chunk < shape_.all_chunks(); chunk += shape_.stages) {
    const bool is_first = chunk == 0, is_last = chunk == shape_.all_chunks() - 1;
    if (!is_first) receive(activations_in_, subject_of({Kind::receive_activations, chunk, 0}));
    model.evaluate(fsdp, batch, {.chunk = chunk / shape_.stages, .micro_batch = 0},
                   is_first ? Tensor() : received(activations_in_),
                   is_last ? Tensor() : free_slot(activations_out_));
    if (!is_last) send(activations_out_, subject_of({Kind::send_activations, chunk, 0}));
  }
}

/// Returns what both ends call a transfer, at an address that stays.
const std::string& Pipeline::subject_of(const PipelineAction& transfer) {
  const auto& [kind, chunk, micro_batch] = transfer;
  const bool forward = kind == Kind::send_activations || kind == Kind::receive_activations;
  const bool sends = kind == Kind::send_activations || kind == Kind::send_gradients;
  const int step = forward ? 1 : -1;
  const int from = sends ? chunk : chunk - step;
  auto& text = subjects_[{from, step, micro_batch}];
  if (text.empty())
    text = fmt::format("{} from chunk {} to {}, micro-batch {}",
                       forward ? "activations" : "gradients", from, from + step, micro_batch + 1);
  return text;
}

/// Starts to receive into the next slot, once what was there has been taken.
void Pipeline::receive(Channel& channel, const std::string& subject) {
  const auto slot = channel.count++ % depth;
  auto& collectives = *channel.axis->collectives;
  collectives.set_subject(subject.c_str());
  channel.moved[slot] = collectives.send_recv(channel.slots[slot], 1 - channel.axis->rank,
                                              channel.slots[slot].slice(0, 0),
                                              comm::CollectiveCall::none, compute_.record());
}

/// Returns what was received next. Later work in the compute stream finds it there until the slot's
/// next receive().
Tensor Pipeline::received(Channel& channel) {
  const auto slot = channel.used++ % depth;
  compute_.wait(channel.moved[slot]);
  return in_rows(channel.slots[slot]);
}

/// Returns the slot for the next send(), whose earlier contents have left.
Tensor Pipeline::free_slot(Channel& channel) {
  const auto slot = channel.count % depth;
  compute_.wait(channel.moved[slot]);
  return in_rows(channel.slots[slot]);
}

/// Sends what the compute stream has written to free_slot().
void Pipeline::send(Channel& channel, const std::string& subject) {
  const auto slot = channel.count++ % depth;
  auto& collectives = *channel.axis->collectives;
  collectives.set_subject(subject.c_str());
  channel.moved[slot] =
      collectives.send_recv(channel.slots[slot].slice(0, 0), comm::CollectiveCall::none,
                            channel.slots[slot], 1 - channel.axis->rank, compute_.record());
}

}  // namespace llamesh::train
