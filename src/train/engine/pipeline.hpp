#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "comm/mesh/device_mesh.hpp"
#include "sharding/fsdp.hpp"
#include "train/engine/models.hpp"
#include "train/setup/pipeline_schedule.hpp"
#include "train/setup/setup.hpp"

namespace llamesh::train {

/// Returns the layers that a rank's stage computes, chunk by chunk, with the micro-batches that its
/// schedule keeps in flight; empty without pipeline stages.
std::vector<model::LayerRange> chunks_of_stage(const Setup& setup, int rank);

/// One rank's part in the passes of a model whose layers are divided among pipeline stages: walks
/// its list of actions (pipeline_schedule.hpp), and sends and receives the residual stream and its
/// gradient. Each direction to a neighbor has its own stream, communicator and two buffers at
/// either end, so that transfers overlap with computation.
class Pipeline {
 public:
  static constexpr std::size_t depth = 2;  ///< buffers per direction, at either end
  /// Collective over the mesh. `residual` is this rank's part of the residual stream in a
  /// micro-batch. Borrows `mesh`.
  Pipeline(const Setup& setup, comm::DeviceMesh& mesh,
           const model::TensorParallel::MatrixSize& residual);

  /// Like CausalLM::train() for each micro-batch. Calls `on_micro_batch` after each one's last
  /// backward pass here.
  void train(Models& model, sharding::Fsdp& fsdp, std::span<const model::Batch> micro_batches,
             float scale, const std::function<void()>& on_micro_batch);
  /// Runs a single micro-batch and discards its gradients.
  void replay(Models& model, sharding::Fsdp& fsdp, const model::Batch& batch, float scale);
  /// Like CausalLM::evaluate() for each batch. As many as there are stages keep all at work.
  void evaluate(Models& model, sharding::Fsdp& fsdp, std::span<const model::Batch> batches);

 private:
  /// One direction to a neighbor.
  struct Channel {
    comm::DeviceMesh::Axis* axis = nullptr;  ///< the pair; null: none
    device::Buffer buffer;
    std::vector<Tensor> slots;         ///< (M' D')
    std::vector<device::Event> moved;  ///< by slot: when its last transfer is done
    std::size_t count = 0;             ///< transfers begun
    std::size_t used = 0;              ///< of those received: taken
  };
  struct Passes;

  void open(Channel& channel, comm::DeviceMesh::Axis& axis);
  PipelineShape shape_for(std::span<const model::Batch> batches) const;
  void run(const Passes& passes, const std::vector<PipelineAction>& actions);
  void run_pass(const Passes& passes, const PipelineAction& pass);
  void receive(Channel& channel, const std::string& subject);
  void send(Channel& channel, const std::string& subject);
  const std::string& subject_of(const PipelineAction& transfer);
  Tensor received(Channel& channel);
  Tensor free_slot(Channel& channel);
  /// Returns a slot as (M', D').
  Tensor in_rows(const Tensor& slot) const {
    return slot.reshape({residual_.rows, residual_.cols});
  }

  PipelineShape shape_;
  int stage_;
  device::Stream& compute_ = device::compute_stream();
  DType dtype_;
  model::TensorParallel::MatrixSize residual_;
  Channel activations_in_, activations_out_, gradients_in_, gradients_out_;
  std::map<std::tuple<int, int, int>, std::string> subjects_;  ///< of transfers, for messages
};

}  // namespace llamesh::train
