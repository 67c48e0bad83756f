#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>

#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/scratch.hpp"
#include "ops/cpu/scratch_bytes.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

constexpr std::int64_t block_of_elements = 32768;

/// y[i] = f(y[i], x[i]) in fp32, for dense y and x in any dtypes.
template <class F>
void combine(const Tensor& y, const Tensor& x, const F& f) {
  with_type(y.dtype(), [&]<class Y>(std::type_identity<Y>) {
    with_type(x.dtype(), [&]<class X>(std::type_identity<X>) {
      auto* to = y.span<Y>().data();
      const auto* from = x.span<X>().data();
      for_each_block(y.numel(), block_of_elements, [&](std::int64_t first, std::int64_t last) {
        for_each_vec(last - first, [&](std::int64_t i, auto lanes) {
          auto* at = to + first + i;
          store(at, f(at, load(from + first + i, lanes), lanes), lanes);
        });
      });
    });
  });
}

/// y[i] = f(y[i]) in fp32, for dense y.
template <class F>
void change(const Tensor& y, const F& f) {
  with_type(y.dtype(), [&]<class Y>(std::type_identity<Y>) {
    auto* to = y.span<Y>().data();
    for_each_block(y.numel(), block_of_elements, [&](std::int64_t first, std::int64_t last) {
      for_each_vec(last - first, [&](std::int64_t i, auto lanes) {
        auto* at = to + first + i;
        store(at, f(at, lanes), lanes);
      });
    });
  });
}

/// Copies a matrix with strided rows.
void copy_rows(Stream& stream, const Tensor& y, const Tensor& x) {
  expects(y.cols() == x.cols() && y.dtype() == x.dtype(), "copy of rows");
  stream.run([=] {
    const auto bytes = static_cast<std::size_t>(y.cols() * size_of(y.dtype()));
    for_each_block(y.rows(), rows_per_block(y.cols()), [&](std::int64_t first, std::int64_t last) {
      for (auto m = first; m < last; ++m)
        std::memcpy(y.slice_rows(m, 1).data(), x.slice_rows(m, 1).data(), bytes);
    });
  });
}

double squares_of(const float* x, std::int64_t n) {
  constexpr std::int64_t lanes = 16;  // the same on every CPU, so that the sum is too
  double total[lanes] = {};
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (std::int64_t j = 0; j < lanes; ++j) {
      const auto v = static_cast<double>(x[i + j]);
      total[j] += v * v;
    }
  for (; i < n; ++i) {
    const auto v = static_cast<double>(x[i]);
    total[i % lanes] += v * v;
  }
  return std::accumulate(total, total + lanes, 0.0);
}

/// Returns the largest bits without sign, which are ordered as the magnitudes, with NaNs above all
/// others.
std::int32_t largest_bits_of(const float* x, std::int64_t n) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i)
    largest = std::max(largest, std::bit_cast<std::int32_t>(x[i]) & 0x7FFFFFFF);
  return largest;
}

/// Eight doubles, and the eight floats that they come from.
using Doubles = double __attribute__((vector_size(64)));
using Floats = float __attribute__((vector_size(32)));

/// Sums the squares exactly, in any order, for at most reduction_block numbers.
SquareUnits units_of(const float* x, std::int64_t n, int exponent) {
  constexpr std::int64_t lanes = 8;
  const auto [large, small] = SquareUnits::sizes(exponent);
  // Added and subtracted, these round to whole units.
  const double to_large = 0x1.8p52 * large, to_small = 0x1.8p52 * small;
  Doubles large_sum{}, small_sum{};
  const auto add = [&](const float* from, std::int64_t count) {
    Floats values{};
    std::memcpy(&values, from, static_cast<std::size_t>(count) * sizeof(float));
    const auto v = __builtin_convertvector(values, Doubles);
    const auto square = v * v;
    const auto whole = (square + to_large) - to_large;
    large_sum += whole;
    small_sum += ((square - whole) + to_small) - to_small;
  };
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) add(x + i, lanes);
  if (i < n) add(x + i, n - i);
  SquareUnits sum;
  for (std::int64_t lane = 0; lane < lanes; ++lane) {
    sum.large += static_cast<std::int64_t>(large_sum[lane] / large);
    sum.small += static_cast<std::int64_t>(small_sum[lane] / small);
  }
  return sum;
}

/// Returns the results of of_block(from, count) for blocks of fp32 x, combined in order.
template <class Result, class OfBlock, class Combine>
Result reduce(Stream& stream, const Tensor& x, const OfBlock& of_block, const Combine& combine) {
  Result total{};
  stream.run([&] {
    thread_local Scratch scratch;
    const auto numbers = x.span<float>();
    const auto count = static_cast<std::int64_t>(numbers.size());
    const auto bytes = reduction_scratch<Result>(count);
    auto* partial = reinterpret_cast<Result*>(scratch.bytes(bytes));
    for_each_block(count, reduction_block, [&](std::int64_t first, std::int64_t last) {
      partial[first / reduction_block] = of_block(numbers.data() + first, last - first);
    });
    total = std::accumulate(partial, partial + bytes / static_cast<std::int64_t>(sizeof(Result)),
                            Result{}, combine);
  });
  stream.record().wait();
  return total;
}

}  // namespace

void copy(Stream& stream, Tensor y, Tensor x) {
  expects(y.numel() == x.numel(), "copy of {} numbers to {}", x.numel(), y.numel());
  if (!y.dense() || !x.dense()) return copy_rows(stream, y, x);
  stream.run([=] { combine(y, x, [](auto*, Vec from, auto) { return from; }); });
}

void add(Stream& stream, Tensor y, Tensor x) {
  expects(y.numel() == x.numel(), "add of {} numbers to {}", x.numel(), y.numel());
  stream.run([=] {
    combine(y, x, [](auto* at, Vec from, auto lanes) { return load(at, lanes) + from; });
  });
}

void fill(Stream& stream, Tensor y, float value) {
  stream.run([=] { change(y, [value](auto*, auto) { return broadcast(value); }); });
}

void scale(Stream& stream, Tensor y, float factor) {
  stream.run(
      [=] { change(y, [factor](auto* at, auto lanes) { return load(at, lanes) * factor; }); });
}

void softcap(Stream& stream, Tensor y, float c) {
  stream.run([=] {
    change(y, [c](auto* at, auto lanes) { return c * cpu::tanh(load(at, lanes) * (1.0F / c)); });
  });
}

double sum_of_squares(Stream& stream, const std::vector<Tensor>& xs) {
  double sum = 0;
  for (const Tensor& x : xs) sum += reduce<double>(stream, x, squares_of, std::plus<>());
  return sum;
}

float largest_magnitude(Stream& stream, Tensor x) {
  const auto bits = reduce<std::int32_t>(stream, x, largest_bits_of,
                                         [](auto a, auto b) { return std::max(a, b); });
  return std::bit_cast<float>(bits);
}

SquareUnits square_units(Stream& stream, Tensor x, int exponent) {
  return reduce<SquareUnits>(
      stream, x,
      [exponent](const float* from, std::int64_t n) { return units_of(from, n, exponent); },
      [](SquareUnits sum, const SquareUnits& part) { return sum += part; });
}

std::uint64_t hash_elements(Stream& stream, Tensor x, ElementNumbers numbers) {
  std::atomic<std::uint64_t> sum = 0;  // in any order
  stream.run([&] {
    with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
      const T* const values = x.as<T>();
      for_each_block(x.numel(), reduction_block, [&](std::int64_t first, std::int64_t last) {
        std::uint64_t of_block = 0;
        for (auto row = first; row < last;) {
          const auto end = std::min(last, row + numbers.cols - row % numbers.cols);
          const auto number = numbers[row] - static_cast<std::uint64_t>(row);
          for (auto i = row; i < end; ++i)
            of_block +=
                hash_of_element(number + static_cast<std::uint64_t>(i),
                                std::bit_cast<std::uint32_t>(static_cast<float>(values[i])));
          row = end;
        }
        sum += of_block;
      });
    });
  });
  stream.record().wait();
  return sum;
}

}  // namespace llamesh::ops::cpu
