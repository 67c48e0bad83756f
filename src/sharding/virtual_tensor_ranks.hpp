#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "comm/mesh/device_mesh.hpp"
#include "core/turns.hpp"
#include "device/buffer.hpp"
#include "model/layers/tensor_parallel.hpp"
#include "sharding/sharding_options.hpp"
#include "sharding/virtual_ranks.hpp"

namespace llamesh::sharding {

/// Tensor parallelism over more ranks than there are. Each rank along the axis stands for as many
/// neighboring virtual ranks, which compute by Turns and meet wherever ranks would exchange
/// something. Results have the bits of as many real ranks, whose sums are balanced trees: the rank
/// adds up the partial sums of its own virtual ranks, then the ranks add up these.
class VirtualTensorRanks {
 public:
  /// For `count` turns. Collective over the axis. Borrows axis and turns. The residual stream is as
  /// for MeshTensorParallel.
  VirtualTensorRanks(comm::DeviceMesh::Axis& axis, Turns& turns, int count,
                     const TensorOptions& options, std::int64_t rows, std::int64_t hidden,
                     DType dtype);
  /// Returns what the model of one of these turns calls.
  model::TensorParallel& of(int turn) { return members_[static_cast<std::size_t>(turn)]; }

 private:
  class Member final : public model::TensorParallel {
   public:
    Member(VirtualTensorRanks& all, int turn) : all_(all), turn_(turn) {}
    int size() const override { return all_.size(); }
    int rank() const override { return all_.axis_.rank * all_.count_ + turn_; }
    MatrixSize residual(MatrixSize whole) const override;
    bool divides_columns() const override { return all_.residual_ == ResidualLayout::hidden; }
    Gathered gather(Tensor mine) override { return all_.gather(turn_, mine); }
    Tensor partial(Tensor mine) override { return all_.partial(turn_, mine); }
    device::Event reduce(Tensor mine) override { return all_.reduce(turn_, mine); }
    device::Event all_gather(Tensor all, Tensor mine) override {
      return all_.all_gather(turn_, all, mine);
    }

   private:
    VirtualTensorRanks& all_;
    int turn_;
  };

  int size() const { return axis_.size * count_; }
  std::int64_t parts_by(ResidualLayout layout) const { return residual_ == layout ? size() : 1; }
  model::TensorParallel::Gathered gather(int turn, const Tensor& mine);
  Tensor partial(int turn, const Tensor& mine);
  device::Event reduce(int turn, const Tensor& mine);
  device::Event all_gather(int turn, const Tensor& all, const Tensor& mine);
  /// Returns where this rank collects its turns' parts like `like`.
  Tensor own_part(int turn, const Tensor& like);
  void exchange(const Tensor& all, const Tensor& mine);
  Tensor matrix_in(const device::Buffer& buffer, const Tensor& mine, DType dtype) const;
  void add_up(const Tensor& mine, int first, int count, std::size_t level);

  /// Ends an exchange: the last turn calls `together` before all go on.
  void meet(int turn, const std::function<void()>& together) {
    turns_.meet(turn + 1 == count_ ? together : std::function<void()>());
  }

  comm::DeviceMesh::Axis& axis_;
  Turns& turns_;
  int count_;
  device::Stream& compute_ = device::compute_stream();
  ResidualLayout residual_;
  DType dtype_, sum_dtype_;
  std::deque<Member> members_;
  device::Buffer own_, all_;                ///< what this rank's turns exchange, and what all do
  std::array<device::Buffer, 2> gathered_;  ///< used in turn
  std::size_t next_ = 0;
  device::Buffer parts_;                  ///< if the residual stream is divided by columns
  std::vector<device::Buffer> partials_;  ///< by turn
  std::vector<device::Buffer> sums_;      ///< by the tree's levels
  device::Buffer sum_;                    ///< this rank's part, over all ranks
};

}  // namespace llamesh::sharding
