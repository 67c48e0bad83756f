#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.hpp"
#include "device/buffer.hpp"
#include "ops/calls.hpp"
#include "sharding/shard_layout.hpp"

namespace llamesh::sharding {

/// Copies fp32 values on the host to a dense shard, in its dtype.
void upload_values(device::MemoryKind memory, const Tensor& to, std::span<const float> values);
/// Copies a dense shard to the host as fp32.
void download_values(device::MemoryKind memory, std::span<float> values, const Tensor& from);

/// Rounds values to what codes in this format can stand for. The first one begins a scale.
void round_to_codes(std::span<float> values, ops::CodeFormat format);

/// A view of elements in a rank's shard, which holds them as numbers or as codes.
class ShardValues {
 public:
  /// A dense tensor in fp32 or bf16.
  ShardValues(device::MemoryKind memory, const Tensor& numbers);
  /// One part, whole.
  ShardValues(device::MemoryKind memory, const ops::BlockCodes& codes);

  std::int64_t numel() const { return count_; }
  ShardValues slice(std::int64_t first, std::int64_t count) const;
  /// Returns the elements themselves if they are fp32 that the host can access, or else nothing.
  std::span<float> in_place() const;
  /// Copies values from the host, one for each element, rounded to what holds them. Codes are
  /// written whole: the range begins and ends with numbers that share a scale.
  void upload(std::span<const float> values) const;
  /// Copies them to the host as fp32. Likewise for codes.
  void download(std::span<float> values) const;

 private:
  bool is_coded() const { return static_cast<bool>(codes_.bytes); }
  void check_codes() const;
  template <class Copy>
  void copy_codes(const ops::BlockCodes& host, const Copy& copy) const;

  device::MemoryKind memory_;
  Tensor numbers_;         ///< of this range
  ops::BlockCodes codes_;  ///< of the whole shard
  std::int64_t first_ = 0, count_;
};

/// Returns a unit's whole shard in this memory.
ShardValues values_of(const ShardLayout::PlacedUnit& unit, device::MemoryKind memory,
                      const Tensor& shard);

}  // namespace llamesh::sharding
