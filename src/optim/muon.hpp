#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "comm/mesh/device_mesh.hpp"
#include "device/buffer.hpp"
#include "optim/optimizer_options.hpp"
#include "optim/rounding_bits.hpp"
#include "sharding/sharded_state.hpp"

namespace llamesh::optim {

/// Returns true for the parameters that Muon updates: weights of the hidden layers' linear layers,
/// each expert's matrices included. Embedding, head, norms, biases and routers have AdamW.
bool is_hidden_matrix(const model::Parameter& parameter);

/// Throws a user error if the ranks hold no whole matrices, or hold them in host memory.
void check_muon(const sharding::ShardLayout& layout, sharding::Offload offload);

/// Muon on flat shards: momentum, orthogonalized by Newton-Schulz iterations on whole matrices.
/// They multiply in the compute dtype, as the authors' do in bf16; x x^T and the polynomial are
/// fp32.
///
/// For each unit, one all-to-all over its shard group takes each matrix to one rank, and a second
/// one takes the result back to the ranks that hold its pieces. A rank gets the next matrix, the
/// most expensive one in the unit first, if it has the least work so far: the ranks share the work
/// evenly over the units. Units overlap: while some ranks work on a unit, the others go on to the
/// next ones. Replicas do the same work.
class Muon {
 public:
  /// Collective over the mesh. Borrows both. Allocates memory for the matrices in flight, equally
  /// on all ranks.
  Muon(const MuonOptions& options, double weight_decay, sharding::ShardedState& state,
       comm::DeviceMesh& mesh);

  /// Callback that visits a piece's ranges with the random bits for their momentum.
  using ForEachRounded =
      std::function<void(const sharding::Piece& piece, const VisitRounded& visit)>;

  /// Updates all hidden matrices, their momentum (the state's first moment) and their copies.
  /// Overwrites nothing else. Gradients are scaled by `clip`. Calls `on_updated` once a unit's
  /// update is queued, for each unit in order. Collective.
  void step(double lr, double clip, const ForEachRounded& for_each_rounded,
            const std::function<void(std::size_t unit)>& on_updated);

 private:
  /// Elements of one matrix that this rank holds, and their offset in a slot's `held`.
  struct Part {
    sharding::Piece piece;
    std::int64_t offset;
    float scale;  ///< of its update
  };
  /// A matrix that this rank orthogonalizes, and its offset in a slot's `whole`.
  struct Matrix {
    std::int64_t rows, cols, offset;
  };
  /// A unit's exchange, from this rank's view. Counts are elements by rank of the shard group.
  struct Exchange {
    std::string subject;
    comm::DeviceMesh::Axis* axis = nullptr;
    std::vector<Part> parts = {};
    std::vector<Matrix> matrices = {};
    std::vector<std::int64_t> held_counts = {}, whole_counts = {};
    std::int64_t held = 0, whole = 0;  ///< their sums
  };
  /// Memory for a unit in flight.
  struct Slot {
    device::Buffer held;   ///< this rank's parts, by owner
    device::Buffer whole;  ///< the matrices that it owns; none if it holds them whole
    device::Event arrived;
  };
  /// Slots for the units on an axis.
  struct Group {
    std::vector<double> work;  ///< by rank, so far
    std::int64_t max_held = 0, max_whole = 0;
    std::vector<Slot> slots;
  };

  Exchange plan(std::size_t unit, Group& group);
  void allocate(std::int64_t max_matrix, std::int64_t max_square);
  Slot& slot_of(std::size_t unit);
  Tensor whole_of(std::size_t unit);
  void gather(std::size_t unit, double clip, const ForEachRounded& for_each_rounded);
  void orthogonalize(std::size_t unit);
  void update(std::size_t unit, double lr);
  void orthogonalize(const Tensor& matrix);

  MuonOptions options_;
  double weight_decay_;
  sharding::ShardedState& state_;
  std::vector<Exchange> exchanges_;  ///< by unit
  std::map<comm::DeviceMesh::Axis*, Group> groups_;
  std::size_t ahead_ = 0;   ///< units gathered ahead of the one being orthogonalized
  std::size_t behind_ = 0;  ///< units whose results may still be under way
  /// For one matrix (fp32, or two in bf16), twice its smaller side squared, and that in bf16.
  std::array<device::Buffer, 4> scratch_;
};

}  // namespace llamesh::optim
