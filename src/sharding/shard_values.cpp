#include "sharding/shard_values.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "device/device.hpp"
#include "ops/ops.hpp"

namespace llamesh::sharding {

using device::MemoryKind;
using ops::BlockCodes;

void upload_values(MemoryKind memory, const Tensor& to, std::span<const float> values) {
  auto& stream = device::stream_of(memory);
  if (to.dtype() == DType::f32) return device::upload(stream, to, values.data());
  std::vector<bf16> cast(values.begin(), values.end());
  device::upload(stream, to, cast.data());
}

void download_values(MemoryKind memory, std::span<float> values, const Tensor& from) {
  auto& stream = device::stream_of(memory);
  if (from.dtype() == DType::f32) return device::download(stream, values.data(), from);
  std::vector<bf16> stored(values.size());
  device::download(stream, stored.data(), from);
  std::ranges::transform(stored, values.begin(),
                         [](bf16 value) { return static_cast<float>(value); });
}

namespace {

/// Holds the codes of one part.
class HostCodes {
 public:
  HostCodes(std::int64_t numel, ops::CodeFormat format)
      : bytes_(static_cast<std::size_t>(BlockCodes::part_bytes(numel, format))),
        codes_{.bytes = Tensor(bytes_.data(), DType::i8, {1, std::ssize(bytes_)}),
               .part_numel = numel,
               .format = format} {}
  const BlockCodes& codes() const { return codes_; }

 private:
  std::vector<std::byte> bytes_;
  BlockCodes codes_;
};

/// A range in the bytes of a part: codes or scales.
struct ByteRange {
  std::int64_t first, count;
};
ByteRange code_bytes(const BlockCodes& codes, std::int64_t first, std::int64_t count) {
  const auto bits = ops::bits_of(codes.format);
  return {first * bits / 8, count * bits / 8};
}
ByteRange scale_bytes(const BlockCodes& codes, std::int64_t first, std::int64_t count) {
  const auto all = BlockCodes::blocks(codes.part_numel) * BlockCodes::block;
  const auto shared = ops::scale_numel(codes.format);
  return {code_bytes(codes, 0, all).count + first / shared * 4, (count + shared - 1) / shared * 4};
}

}  // namespace

void round_to_codes(std::span<float> values, ops::CodeFormat format) {
  const HostCodes host(std::ssize(values), format);
  const Tensor numbers(values.data(), DType::f32, {std::ssize(values)});
  ops::quantize_blocks(device::host_stream(), host.codes(), numbers, {});
  ops::dequantize_blocks(device::host_stream(), numbers, host.codes());
}

ShardValues::ShardValues(MemoryKind memory, const Tensor& numbers)
    : memory_(memory), numbers_(numbers), codes_{}, count_(numbers_.numel()) {}

ShardValues::ShardValues(MemoryKind memory, const BlockCodes& codes)
    : memory_(memory), codes_(codes), count_(codes.part_numel) {
  expects(codes.parts() == 1, "a shard with {} parts of codes", codes.parts());
}

ShardValues ShardValues::slice(std::int64_t first, std::int64_t count) const {
  auto slice = *this;
  slice.first_ += first;
  slice.count_ = count;
  if (!is_coded()) slice.numbers_ = numbers_.slice(first, count);
  return slice;
}

std::span<float> ShardValues::in_place() const {
  if (is_coded() || !device::host_accessible(memory_) || numbers_.dtype() != DType::f32) return {};
  return numbers_.span<float>();
}

void ShardValues::upload(std::span<const float> values) const {
  if (!is_coded()) return upload_values(memory_, numbers_, values);
  check_codes();
  const HostCodes host(count_, codes_.format);
  const Tensor numbers(const_cast<float*>(values.data()), DType::f32, {count_});  // only read
  ops::quantize_blocks(device::host_stream(), host.codes(), numbers, {});
  copy_codes(host.codes(), [&](const Tensor& here, const Tensor& there) {
    device::upload(device::stream_of(memory_), here, there.data());
  });
}

void ShardValues::download(std::span<float> values) const {
  if (!is_coded()) return download_values(memory_, values, numbers_);
  check_codes();
  const HostCodes host(count_, codes_.format);
  copy_codes(host.codes(), [&](const Tensor& here, const Tensor& there) {
    device::download(device::stream_of(memory_), there.data(), here);
  });
  ops::dequantize_blocks(device::host_stream(), Tensor(values.data(), DType::f32, {count_}),
                         host.codes());
}

void ShardValues::check_codes() const {
  const auto shared = ops::scale_numel(codes_.format);
  expects(first_ % shared == 0 && (count_ % shared == 0 || first_ + count_ == codes_.part_numel),
          "codes of {} numbers from {} on, of which {} share a scale", count_, first_, shared);
}

/// Calls copy(here, there) for the codes and the scales, here and in host memory.
template <class Copy>
void ShardValues::copy_codes(const BlockCodes& host, const Copy& copy) const {
  for (const auto& range : {code_bytes, scale_bytes}) {
    const auto here = range(codes_, first_, count_), there = range(host, 0, count_);
    copy(codes_.bytes.slice(here.first, here.count), host.bytes.slice(there.first, there.count));
  }
}

ShardValues values_of(const ShardLayout::PlacedUnit& unit, MemoryKind memory, const Tensor& shard) {
  if (shard.dtype() != DType::i8) return {memory, shard};
  return {memory, BlockCodes{.bytes = shard.reshape({1, shard.numel()}),
                             .part_numel = unit.shard_numel,
                             .format = *unit.codes}};
}

}  // namespace llamesh::sharding
