#include "comm/transports/host_reduce.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace llamesh::comm {
namespace {

template <class To, class From>
void convert(To* __restrict to, const From* __restrict from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(static_cast<float>(from[i]));
}

template <class From>
void accumulate_all(float* __restrict sum, const From* __restrict addend, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] += static_cast<float>(addend[i]);
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
  constexpr std::int64_t block = 4096;
  alignas(64) std::array<float, block> sums;
  for (std::int64_t first = 0; first < out.numel(); first += block) {
    const Tensor to = out.slice(first, std::min(block, out.numel() - first));
    const Tensor sum(sums.data(), DType::f32, {to.numel()});
    bool empty = accumulate == Accumulate::no;
    if (!empty) copy_cast(sum, to);
    for (const std::byte* part : parts) {
      const std::byte* from = part + first * size_of(dtype);
      const auto take = [&](const auto* values) {
        if (empty)
          convert(sums.data(), values, to.numel());
        else
          accumulate_all(sums.data(), values, to.numel());
      };
      if (dtype == DType::bf16)
        take(reinterpret_cast<const bf16*>(from));
      else
        take(reinterpret_cast<const float*>(from));
      empty = false;
    }
    copy_cast(to, sum);
  }
}

}  // namespace llamesh::comm
