#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "comm/mesh/device_mesh.hpp"
#include "core/turns.hpp"
#include "device/buffer.hpp"
#include "model/layers/context_parallel.hpp"
#include "sharding/mesh_context_parallel.hpp"
#include "sharding/virtual_ranks.hpp"

namespace llamesh::sharding {

/// Context parallelism over more ranks than there are, as VirtualTensorRanks for tensor
/// parallelism.
class VirtualContextRanks {
 public:
  /// Collective over the axis. Borrows axis and turns. `shape` is that of a virtual rank.
  VirtualContextRanks(comm::DeviceMesh::Axis& axis, Turns& turns, const VirtualRanks& ranks,
                      const MeshContextParallel::Shape& shape);
  /// Returns what the model of a turn calls.
  model::ContextParallel& of(int turn) { return members_[static_cast<std::size_t>(turn)]; }

 private:
  using Meanwhile = model::ContextParallel::Meanwhile;
  class Member final : public model::ContextParallel {
   public:
    Member(VirtualContextRanks& all, int turn) : all_(all), turn_(turn) {}
    int size() const override { return all_.size(); }
    int rank() const override {
      return all_.axis_.rank * all_.ranks_.context + all_.ranks_.context_of(turn_);
    }
    model::KeysValues gather(const model::KeysValues& mine, const Meanwhile& meanwhile) override {
      return all_.gather(turn_, mine, meanwhile);
    }
    model::KeysValues gradients(const model::KeysValues& /*mine*/) override {
      return all_.halves(all_.gradients(turn_));
    }
    void reduce(const model::KeysValues& mine, const Meanwhile& meanwhile) override {
      all_.reduce(turn_, mine, meanwhile);
    }
    void sum(const Tensor& values) override { all_.sum(turn_, values); }

   private:
    VirtualContextRanks& all_;
    int turn_;
  };

  int size() const { return axis_.size * ranks_.context; }
  std::int64_t rows() const { return shape_.batch * shape_.tokens; }
  std::int64_t columns() const { return shape_.key_columns + shape_.value_columns; }
  Tensor matrix(const device::Buffer& buffer, std::int64_t rows, DType dtype) const {
    return buffer.tensor(dtype, {rows, columns()});
  }
  model::KeysValues halves(const Tensor& matrix) const {
    return {matrix.slice_cols(0, shape_.key_columns),
            matrix.slice_cols(shape_.key_columns, shape_.value_columns)};
  }
  bool is_last(int turn) const { return ranks_.context_of(turn) + 1 == ranks_.context; }
  Tensor own_rows(int turn) const;
  Tensor gradients(int turn) const;
  model::KeysValues gather(int turn, const model::KeysValues& mine, const Meanwhile& meanwhile);
  void reduce(int turn, const model::KeysValues& mine, const Meanwhile& meanwhile);
  void sum(int turn, const Tensor& values);
  void add_up(int tensor, int first, int count, std::size_t level);

  /// Turns with the same part of the heads exchange rows.
  struct Group {
    device::Buffer own;      ///< their rows, to gather or reduced
    device::Buffer ordered;  ///< of all ranks, sequence by sequence
  };

  comm::DeviceMesh::Axis& axis_;
  Turns& turns_;
  VirtualRanks ranks_;
  device::Stream& compute_ = device::compute_stream();
  MeshContextParallel::Shape shape_;
  DType sum_dtype_;
  std::deque<Member> members_;
  std::vector<Group> groups_;                   ///< by part of the heads
  std::vector<device::Buffer> gradients_;       ///< by turn, sequence by sequence
  device::Buffer exchanged_;                    ///< rank by rank
  std::vector<device::Buffer> sums_;            ///< likewise, by the tree's levels
  device::Buffer sum_;                          ///< this rank's rows
  std::vector<device::Buffer> sums_of_values_;  ///< by turn, for sum()
  device::Buffer to_sequences_, to_ranks_;
};

}  // namespace llamesh::sharding
