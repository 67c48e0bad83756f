#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// Who computes what when, in a step whose layers are divided among ranks. Chunk c of the model's
/// `stages` x `chunks` lies on stage c mod `stages`.
namespace llamesh::train {

/// Sizes of a pipeline and of its steps.
struct PipelineShape {
  int stages = 1;
  int chunks = 1;  ///< per stage: Megatron's virtual stages
  int micro_batches = 1;

  int all_chunks() const { return stages * chunks; }
  int stage_of(int chunk) const { return chunk % stages; }
};

/// Something that a stage does in a step.
struct PipelineAction {
  enum class Kind : std::uint8_t {
    forward,   ///< a chunk's forward pass, of the last chunk without head and loss
    backward,  ///< its backward pass, of the last chunk with head and loss
    receive_activations,
    send_activations,
    receive_gradients,
    send_gradients,
  };
  Kind kind;
  int chunk;  ///< of the whole model; of what is received or sent, the one on this stage
  int micro_batch;
  bool operator==(const PipelineAction&) const = default;
};

/// Describes an action: "forward of micro-batch 3 in chunk 1".
std::string describe(const PipelineAction& action);

/// Returns all that a stage does in a step, in order: 1F1B (Narayanan et al. 2019, PipeDream-Flush)
/// with one chunk per stage, else interleaved 1F1B (Narayanan et al. 2021, section 2.2). Backward
/// passes of a chunk are in the order of the micro-batches, and so are its forward passes. A
/// receive stands one pass before the pass that needs it, so that the data arrive meanwhile. Throws
/// a user error if interleaved chunks do not divide the micro-batches into rounds. Pure.
std::vector<PipelineAction> pipeline_actions(const PipelineShape& shape, int stage);

/// Returns all that a stage does to evaluate `micro_batches` batches, forward passes only: chunk by
/// chunk as many batches as there are stages, so that all stages are at work. Pure.
std::vector<PipelineAction> evaluation_actions(const PipelineShape& shape, int stage);

/// Returns how many micro-batches are at most between their forward and backward pass in a chunk.
int max_in_flight(const std::vector<PipelineAction>& actions, int chunk);
/// The same, in any chunk.
int max_in_flight(const PipelineShape& shape);

/// Returns the fraction of a step's passes for which a stage waits if all passes of a kind take the
/// same time: (p - 1) / (v m).
double pipeline_bubble(const PipelineShape& shape);

}  // namespace llamesh::train
