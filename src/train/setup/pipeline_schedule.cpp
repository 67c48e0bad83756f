#include "train/setup/pipeline_schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/error.hpp"

namespace llamesh::train {
namespace {

using Kind = PipelineAction::Kind;

/// Returns the micro-batches that each chunk of a stage takes in turn: all, without interleaving;
/// else a round of at least as many as there are stages.
int micro_batches_in_turn(const PipelineShape& shape) {
  if (shape.chunks == 1) return shape.micro_batches;
  const int rounds = std::max(1, shape.micro_batches / shape.stages);
  validate(shape.micro_batches % rounds == 0,
           "a step's {} micro-batches do not divide into {} rounds over {} pipeline stages with {} "
           "chunks each; make train.global_batch give a multiple of {}, or set pipeline.chunks=1",
           shape.micro_batches, rounds, shape.stages, shape.chunks, shape.stages);
  return shape.micro_batches / rounds;
}

/// Returns a stage's passes of one direction, in order, with so many micro-batches in turn.
/// Backward passes visit its chunks from the last one.
std::vector<PipelineAction> passes(const PipelineShape& shape, int stage, Kind direction,
                                   int in_turn) {
  std::vector<PipelineAction> all;
  for (int first = 0; first < shape.micro_batches; first += in_turn)
    for (int turn = 0; turn < shape.chunks; ++turn) {
      const int chunk = direction == Kind::forward ? turn : shape.chunks - 1 - turn;
      for (int i = first; i < std::min(first + in_turn, shape.micro_batches); ++i)
        all.push_back({direction, chunk * shape.stages + stage, i});
    }
  return all;
}

/// Returns the number of forward passes before the first backward pass, without the one directly
/// before it.
int warm_up_of(const PipelineShape& shape, int stage) {
  const int after = shape.stages - 1 - stage;
  if (shape.chunks == 1) return std::min(after, shape.micro_batches);
  const int of_other_chunks = (shape.chunks - 1) * micro_batches_in_turn(shape);
  return std::min(of_other_chunks + 2 * after, shape.chunks * shape.micro_batches);
}

std::vector<PipelineAction> ordered_passes(const PipelineShape& shape, int stage) {
  const int in_turn = micro_batches_in_turn(shape);
  const auto forward = passes(shape, stage, Kind::forward, in_turn);
  const auto backward = passes(shape, stage, Kind::backward, in_turn);
  const auto warm_up = static_cast<std::size_t>(warm_up_of(shape, stage));
  std::vector<PipelineAction> order(forward.begin(),
                                    forward.begin() + static_cast<std::ptrdiff_t>(warm_up));
  for (std::size_t i = 0; i < backward.size(); ++i) {
    if (warm_up + i < forward.size()) order.push_back(forward[warm_up + i]);
    order.push_back(backward[i]);
  }
  return order;
}

/// Returns what a pass needs from another stage, if anything.
std::optional<PipelineAction> received_for(const PipelineAction& pass, const PipelineShape& shape) {
  const bool forward = pass.kind == Kind::forward;
  if (pass.chunk == (forward ? 0 : shape.all_chunks() - 1)) return std::nullopt;
  return PipelineAction{forward ? Kind::receive_activations : Kind::receive_gradients, pass.chunk,
                        pass.micro_batch};
}

/// Returns what a pass gives to another stage, if anything.
std::optional<PipelineAction> sent_after(const PipelineAction& pass, const PipelineShape& shape) {
  const bool forward = pass.kind == Kind::forward;
  if (pass.chunk == (forward ? shape.all_chunks() - 1 : 0)) return std::nullopt;
  return PipelineAction{forward ? Kind::send_activations : Kind::send_gradients, pass.chunk,
                        pass.micro_batch};
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::forward:
      return "forward pass";
    case Kind::backward:
      return "backward pass";
    case Kind::receive_activations:
      return "receive activations";
    case Kind::send_activations:
      return "send activations";
    case Kind::receive_gradients:
      return "receive gradients";
    case Kind::send_gradients:
      return "send gradients";
  }
  return "";
}

/// Puts a receive before and a send behind each pass that needs one.
std::vector<PipelineAction> with_transfers(const std::vector<PipelineAction>& order,
                                           const PipelineShape& shape) {
  std::vector<PipelineAction> actions;
  const auto add = [&](const std::optional<PipelineAction>& action) {
    if (action) actions.push_back(*action);
  };
  add(received_for(order.front(), shape));
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i + 1 < order.size()) add(received_for(order[i + 1], shape));
    actions.push_back(order[i]);
    add(sent_after(order[i], shape));
  }
  return actions;
}

}  // namespace

std::string describe(const PipelineAction& action) {
  return fmt::format("{} of micro-batch {} in chunk {}", name_of(action.kind), action.micro_batch,
                     action.chunk);
}

std::vector<PipelineAction> pipeline_actions(const PipelineShape& shape, int stage) {
  return with_transfers(ordered_passes(shape, stage), shape);
}

std::vector<PipelineAction> evaluation_actions(const PipelineShape& shape, int stage) {
  return with_transfers(passes(shape, stage, Kind::forward, shape.stages), shape);
}

int max_in_flight(const std::vector<PipelineAction>& actions, int chunk) {
  int now = 0, max = 0;
  for (const auto& action : actions) {
    if (action.chunk != chunk) continue;
    if (action.kind == Kind::forward) max = std::max(max, ++now);
    if (action.kind == Kind::backward) --now;
  }
  return max;
}

int max_in_flight(const PipelineShape& shape) {
  int max = 0;
  for (int stage = 0; stage < shape.stages; ++stage) {
    const auto actions = pipeline_actions(shape, stage);
    for (int chunk = stage; chunk < shape.all_chunks(); chunk += shape.stages)
      max = std::max(max, max_in_flight(actions, chunk));
  }
  return max;
}

double pipeline_bubble(const PipelineShape& shape) {
  return static_cast<double>(shape.stages - 1) / (shape.chunks * shape.micro_batches);
}

}  // namespace llamesh::train
