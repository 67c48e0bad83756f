#include "train/engine/pipeline.hpp"

#include <fmt/format.h>

#include <set>

#include "core/trace.hpp"
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

/// Scope of a chunk's pass in the trace, around those of its modules.
class TracePass {
 public:
  explicit TracePass(const PipelineAction& pass) : is_open_(Trace::on()) {
    if (!is_open_) return;
    Trace::instance().open(
        "stage", pass.kind == Kind::forward ? "forward" : "backward",
        fmt::format("chunk {}, micro-batch {}", pass.chunk, pass.micro_batch + 1));
  }
  ~TracePass() {
    if (is_open_) Trace::instance().close();
  }
  TracePass(const TracePass&) = delete;
  TracePass& operator=(const TracePass&) = delete;

 private:
  bool is_open_;
};

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
  axis.collectives->connect_pairs();
  channel.buffer = axis.collectives->allocate_symmetric(static_cast<std::int64_t>(depth) * bytes);
  for (std::size_t i = 0; i < depth; ++i)
    channel.slots.push_back(
        channel.buffer.tensor(dtype_, {numel}, static_cast<std::int64_t>(i) * bytes));
  channel.moved.resize(depth);
}

/// Objects with which the actions in a pass compute.
struct Pipeline::Passes {
  Models& model;
  sharding::Fsdp& fsdp;
  std::span<const model::Batch> batches;
  enum class Purpose { train, replay, evaluate } purpose;
  float scale = 1;
  std::function<void()> on_micro_batch = [] {};
};

PipelineShape Pipeline::shape_for(std::span<const model::Batch> batches) const {
  return {.stages = shape_.stages,
          .chunks = shape_.chunks,
          .micro_batches = static_cast<int>(std::ssize(batches))};
}

void Pipeline::train(Models& model, sharding::Fsdp& fsdp,
                     std::span<const model::Batch> micro_batches, float scale,
                     const std::function<void()>& on_micro_batch) {
  run({model, fsdp, micro_batches, Passes::Purpose::train, scale, on_micro_batch},
      pipeline_actions(shape_for(micro_batches), stage_));
}

void Pipeline::replay(Models& model, sharding::Fsdp& fsdp, const model::Batch& batch, float scale) {
  const std::span one(&batch, 1);
  run({model, fsdp, one, Passes::Purpose::replay, scale}, pipeline_actions(shape_for(one), stage_));
}

void Pipeline::evaluate(Models& model, sharding::Fsdp& fsdp,
                        std::span<const model::Batch> batches) {
  run({model, fsdp, batches, Passes::Purpose::evaluate},
      evaluation_actions(shape_for(batches), stage_));
}

void Pipeline::run(const Passes& passes, const std::vector<PipelineAction>& actions) {
  const auto use = passes.model.use_activations();
  for (const auto& action : actions) {
    switch (action.kind) {
      case Kind::forward:
      case Kind::backward:
        run_pass(passes, action);
        break;
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

void Pipeline::run_pass(const Passes& p, const PipelineAction& pass) {
  const TracePass trace(pass);
  const auto& batch = p.batches[static_cast<std::size_t>(pass.micro_batch)];
  const model::CausalLM::Place place{pass.chunk / shape_.stages, pass.micro_batch};
  const bool is_first = pass.chunk == 0, is_last = pass.chunk == shape_.all_chunks() - 1;
  const bool evaluates = p.purpose == Passes::Purpose::evaluate;
  if (!evaluates)
    p.fsdp.begin_micro_batch({.index = pass.micro_batch,
                              .count = std::ssize(p.batches),
                              .discarded = p.purpose == Passes::Purpose::replay});
  if (pass.kind == Kind::forward) {
    const Tensor in = is_first ? Tensor() : received(activations_in_);
    const Tensor out = is_last ? Tensor() : free_slot(activations_out_);
    if (evaluates) return p.model.evaluate(batch, place, in, out);
    return p.model.forward(batch, place, in, out);
  }
  const Tensor gradient = is_last ? Tensor() : received(gradients_in_);
  const Tensor to = is_first ? gradient : free_slot(gradients_out_);
  if (gradient && !is_first) ops::copy(compute_, to, gradient);
  p.model.backward(batch, place, to, p.scale);
  if (place.chunk == 0) p.on_micro_batch();
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
