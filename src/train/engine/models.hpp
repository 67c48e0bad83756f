#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "comm/mesh/device_mesh.hpp"
#include "core/turns.hpp"
#include "model/causal_lm.hpp"
#include "sharding/fsdp.hpp"
#include "sharding/virtual_context_ranks.hpp"
#include "sharding/virtual_tensor_ranks.hpp"
#include "sharding/virtual_weights.hpp"
#include "train/setup/setup.hpp"

namespace llamesh::train {

/// Borrowed by a rank's models.
struct ModelParts {
  sharding::Fsdp& fsdp;
  model::TensorParallel& tensor;
  model::ExpertParallel& experts;
  model::ContextParallel& context;
};

/// This rank's model, or one for each virtual rank that it stands for (Setup::virtual_ranks): these
/// compute the same pass by turns. Results that they have in common are the first one's. See
/// model::CausalLM for the functions with the same names.
class Models {
 public:
  /// Collective over the mesh; borrows the arguments.
  Models(const Setup& setup, comm::DeviceMesh& mesh, const ModelParts& parts);

  void train(const model::Batch& batch, float scale);
  void forward(const model::Batch& batch, const model::CausalLM::Place& place, const Tensor& in,
               const Tensor& out);
  void backward(const model::Batch& batch, const model::CausalLM::Place& place,
                const Tensor& gradient, float scale);
  void evaluate(const model::Batch& batch);
  void evaluate(const model::Batch& batch, const model::CausalLM::Place& place, const Tensor& in,
                const Tensor& out);
  std::vector<device::ScopedAllocation> use_activations() const;

  void begin_step(std::int64_t micro_batches);
  void end_step();
  model::RouterSums take_router_sums();
  double take_loss();
  double loss_so_far();
  std::vector<model::PairResult> take_pairs();
  double seconds_exposed_by_copies() const;

 private:
  /// Ranks for which this one stands.
  struct Virtual {
    Virtual(const Setup& setup, comm::DeviceMesh& mesh, sharding::Fsdp& fsdp);
    model::TensorParallel& tensor_of(int turn);

    sharding::VirtualRanks ranks;
    Turns turns;
    std::deque<sharding::VirtualTensorRanks> tensor;  ///< by turns with the same tokens; or none
    sharding::VirtualContextRanks context;
    sharding::VirtualWeights weights;
    device::Buffer tokens;  ///< of the batch, by turns with the same ones
  };
  template <class Compute>
  void for_each_turn(const Compute& compute);
  Tensor part_of_turn(const Tensor& residual, int turn) const;
  std::size_t turns_with_same_tokens() const {
    return virtual_ ? static_cast<std::size_t>(virtual_->ranks.tensor) : 1;
  }
  model::Batch batch_of_turn(const model::Batch& batch, int turn);

  sharding::Fsdp& fsdp_;
  std::optional<Virtual> virtual_;
  std::deque<model::CausalLM> models_;  ///< by turn
};

}  // namespace llamesh::train
