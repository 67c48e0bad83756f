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

/// Returns a dense tensor as collectives send it: e4m3 numbers as bytes.
Tensor as_sent(const Tensor& t);

/// All-gathers units whose linear layers multiply in FP8 (model::LinearPrecision) as the E4M3
/// numbers that these compute with, a byte each, and other parameters in the gathered dtype. Shards
/// cut rows, whose scales follow from whole rows: so ranks exchange maxima once the weights have
/// changed.
///
/// Numbers are rounded to the gathered dtype first. A forward pass has the same bits as without
/// this form. An input's gradient takes the weights by columns: there only those differ that lose
/// bits by their row's scale, below 2^-14 times its largest number.
class Fp8Gather {
 public:
  /// A gathered unit.
  struct Whole {
    Tensor values;  ///< (padded_numel) e4m3, which only linear layers' weights are read from
    Tensor others;  ///< (others_numel()) in the constructor's dtype: all other parameters
  };

  /// For these units, which are sharded along the axis. Collective; both are borrowed.
  Fp8Gather(comm::DeviceMesh::Axis& axis, const ShardLayout& layout,
            std::span<const std::size_t> units, DType dtype);
  /// Returns true if a unit has fewer bytes in this form.
  bool takes(std::size_t unit) const { return plans_[unit].has_value(); }
  std::int64_t others_numel(std::size_t unit) const { return plans_[unit]->others_numel; }
  /// Call when a unit's weights have other values: its next gather exchanges maxima first.
  void on_weights_changed(std::size_t unit) {
    if (takes(unit)) plans_[unit]->has_scales = false;
  }
  /// Gathers a unit that it takes: `values` once `after` is complete, as Collectives::all_gather(),
  /// and `others` in the order of the axis's stream.
  device::Event all_gather(std::size_t unit, const Whole& whole, const Tensor& mine,
                           const device::Event& after);
  /// Returns this rank's part of a parameter in a gathered unit, as a view.
  Tensor parameter(model::ParameterId id, const Whole& whole) const;
  /// Returns the scales for the rows of a linear layer's weight, (rows) fp32; else none.
  Tensor scales(model::ParameterId id) const;

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
  /// A parameter that no linear layer multiplies by.
  struct Other {
    Range range;
    std::int64_t first;  ///< element in Whole::others
  };
  struct Plan {
    std::vector<Matrix> matrices;
    std::vector<Other> others;
    std::int64_t shard_numel = 0;
    std::int64_t rows = 0;
    std::int64_t rows_of_rank = 0;    ///< on the rank with most, padded
    std::int64_t others_of_rank = 0;  ///< elements, likewise
    std::int64_t others_numel = 0;
    std::vector<std::int32_t> first_rows = {};  ///< by rank
    device::Buffer scales = {}, first_rows_on_device = {};
    bool has_scales = false;

    Range shard(int rank) const { return {rank * shard_numel, shard_numel}; }
    std::int64_t message_bytes(DType dtype) const {
      return shard_numel + others_of_rank * size_of(dtype);
    }
  };

  static Range common(const Range& a, const Range& b);
  Plan make_plan(const ShardLayout& layout, std::size_t unit);
  template <class Visit>
  void for_each_other(const Plan& plan, int rank, const Visit& visit) const;
  template <class Visit>
  void for_each_own_run(const Plan& plan, const Tensor& own, const Visit& visit) const;
  const Plan& plan_of(model::ParameterId id) const { return *plans_[layout_.place(id).unit]; }
  void agree_on_scales(Plan& plan, const Tensor& own);
  void gather_others(const Plan& plan, const Tensor& whole, const Tensor& own);

  comm::DeviceMesh::Axis& axis_;
  const ShardLayout& layout_;
  DType dtype_;
  std::vector<std::optional<Plan>> plans_;  ///< by unit; none: it is gathered in dtype_
  std::vector<std::int64_t> first_;         ///< by parameter: its first row, or Other::first
  device::Buffer maxima_, all_maxima_;
  device::Buffer values_, others_, all_others_;  ///< this rank's, and those from all ranks
  device::Buffer rounded_;                       ///< this rank's shard in dtype_
};

}  // namespace llamesh::sharding
