#include "comm/transports/host_reduce.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

namespace llamesh::comm {
namespace {

template <class To, class From>
void convert(To* __restrict to, const From* __restrict from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(static_cast<float>(from[i]));
}

template <class From>
void add_two(float* __restrict sum, const From* __restrict a, const From* __restrict b,
             std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    sum[i] = static_cast<float>(a[i]) + static_cast<float>(b[i]);
}

template <class From>
void accumulate_all(float* __restrict sum, const From* __restrict addend, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] += static_cast<float>(addend[i]);
}

constexpr std::int64_t block = 1024;

/// Sums `count` elements from element `first` on over all parts into `sum`, which has room for a
/// block per level.
template <class From>
void sum_tree(float* sum, std::span<const std::byte* const> parts, std::int64_t first,
              std::int64_t count) {
  const auto values = [&](std::size_t part) {
    return reinterpret_cast<const From*>(parts[part]) + first;
  };
  if (parts.size() == 1) return convert(sum, values(0), count);
  if (parts.size() == 2) return add_two(sum, values(0), values(1), count);
  const auto left = std::bit_ceil(parts.size()) / 2;
  sum_tree<From>(sum, parts.first(left), first, count);
  sum_tree<From>(sum + block, parts.subspan(left), first, count);
  accumulate_all(sum, sum + block, count);
}

}  // namespace

Slice slice_of(std::int64_t numel, int rank, int size) {
  constexpr std::int64_t line = 16;  // elements, at 4 bytes
  const std::int64_t n = ((numel + size - 1) / size + line - 1) / line * line;
  const std::int64_t first = std::min(rank * n, numel);
  return {first, std::min(n, numel - first)};
}

void copy_cast(const Tensor& to, const Tensor& from) {
  expects(to.numel() == from.numel(), "a copy of {} elements to {}", from.numel(), to.numel());
  if (to.data() == from.data() || to.numel() == 0) return;
  if (to.dtype() == from.dtype())
    std::memcpy(to.data(), from.data(), static_cast<std::size_t>(from.bytes()));
  else if (to.dtype() == DType::bf16)
    convert(to.as<bf16>(), from.as<float>(), from.numel());
  else
    convert(to.as<float>(), from.as<bf16>(), from.numel());
}

void add_to(const Tensor& sum, const Tensor& addend, Accumulate accumulate) {
  if (accumulate == Accumulate::no) return copy_cast(sum, addend);
  expects(sum.numel() == addend.numel(), "a sum of {} elements and {}", sum.numel(),
          addend.numel());
  if (addend.dtype() == DType::bf16)
    accumulate_all(sum.as<float>(), addend.as<bf16>(), sum.numel());
  else
    accumulate_all(sum.as<float>(), addend.as<float>(), sum.numel());
}

void sum_parts(const Tensor& out, std::span<const std::byte* const> parts, DType dtype,
               Accumulate accumulate) {
  expects(!parts.empty(), "a sum of no parts");
  thread_local std::vector<float> sums;
  sums.resize(static_cast<std::size_t>(block * std::bit_width(parts.size())));
  for (std::int64_t first = 0; first < out.numel(); first += block) {
    const Tensor to = out.slice(first, std::min(block, out.numel() - first));
    const Tensor sum(sums.data(), DType::f32, {to.numel()});
    if (dtype == DType::bf16)
      sum_tree<bf16>(sums.data(), parts, first, to.numel());
    else
      sum_tree<float>(sums.data(), parts, first, to.numel());
    if (accumulate == Accumulate::yes) add_to(sum, to, Accumulate::yes);
    copy_cast(to, sum);
  }
}

}  // namespace llamesh::comm
