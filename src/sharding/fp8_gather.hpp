#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "comm/mesh/device_mesh.hpp"
#include "device/buffer.hpp"
#include "ops/ops.hpp"
#include "sharding/shard_layout.hpp"

namespace llamesh::sharding {

/// All-gathers units whose linear layers multiply in FP8 (model::LinearPrecision) as the E4M3
/// numbers that these compute with, a byte each, and other parameters in the gathered dtype. Shards
/// cut rows, whose scales follow from whole rows: so ranks exchange maxima once the weights have
/// changed.
///
/// Numbers are rounded to the gathered dtype first. Rounded twice they stay the same, so a forward
/// pass has the same bits as without it. An input's gradient takes them by columns: there only
/// those differ that lose bits by their row's scale, below 2^-14 times its largest number.
class Fp8Gather {
 public:
  /// For these units, which are sharded along the axis. Collective; both are borrowed.
  Fp8Gather(comm::DeviceMesh::Axis& axis, const ShardLayout& layout,
            std::span<const std::size_t> units, DType dtype);
  /// Returns true if a unit has fewer bytes in this form.
  bool takes(std::size_t unit) const { return plans_[unit].has_value(); }
  /// Call when a unit's weights have other values: its next gather exchanges maxima first.
  void on_weights_changed(std::size_t unit) {
    if (takes(unit)) plans_[unit]->has_scales = false;
  }
  /// As Collectives::all_gather(), of a unit that it takes, with whole in the constructor's dtype.
  device::Event all_gather(std::size_t unit, const Tensor& whole, const Tensor& mine,
                           const device::Event& after);

 private:
  /// Neighboring elements in the unit.
  struct Range {
    std::int64_t begin, count;
  };
  /// A linear layer's weight, or a stack of them.
  struct Matrix {
    Range range;
    std::int64_t cols, first_row;  ///< among all rows in the unit
  };
  struct Plan {
    std::vector<Matrix> matrices;
    std::vector<Range> others;  ///< what no linear layer multiplies by
    std::int64_t shard_numel = 0;
    std::int64_t rows = 0;
    std::int64_t rows_of_rank = 0;              ///< on the rank with most, padded
    std::int64_t others_of_rank = 0;            ///< elements, likewise
    std::vector<std::int32_t> first_rows = {};  ///< by rank
    device::Buffer scales = {}, first_rows_on_device = {};
    bool has_scales = false;

    Range shard(int rank) const { return {rank * shard_numel, shard_numel}; }
  };

  static Range common(const Range& a, const Range& b);
  Plan make_plan(const ShardLayout& layout, std::size_t unit) const;
  std::int64_t message_bytes(const Plan& plan) const;
  template <class Visit>
  void for_each_other(const Plan& plan, int rank, const Visit& visit) const;
  template <class Visit>
  void for_each_own_run(const Plan& plan, const Tensor& own, const Visit& visit) const;
  static Tensor scales_of(const Plan& plan, const Matrix& matrix);
  void agree_on_scales(Plan& plan, const Tensor& own);
  void round_own(const Plan& plan, const Tensor& own);
  void send(const Plan& plan, const Tensor& own);
  void receive(const Plan& plan, const Tensor& whole);
  Tensor others_in(const Plan& plan, int rank, std::int64_t first, std::int64_t count) const;

  comm::DeviceMesh::Axis& axis_;
  DType dtype_;
  std::vector<std::optional<Plan>> plans_;  ///< by unit; none: it is gathered in dtype_
  device::Buffer maxima_, all_maxima_;
  device::Buffer messages_;  ///< all ranks', or only this one's if `whole` is shared memory
  device::Buffer rounded_;   ///< this rank's shard in dtype_
};

}  // namespace llamesh::sharding
