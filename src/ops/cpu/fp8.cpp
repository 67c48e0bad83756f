#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/gemm.hpp"
#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/scratch.hpp"
#include "ops/cpu/scratch_bytes.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"
#include "ops/fp8_scale.hpp"

namespace llamesh::ops::cpu {
namespace {

using VecBytes [[gnu::vector_size(vec_width)]] = std::uint8_t;

VecBits load_bits(const e4m3* from, Whole /*lanes*/) {
  VecBytes bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return __builtin_convertvector(bytes, VecBits);
}
VecBits load_bits(const e4m3* from, Part lanes) {
  e4m3 whole[vec_width] = {};
  std::copy_n(from, lanes.count, whole);
  return load_bits(whole, Whole{});
}

void store_bits(e4m3* to, VecBits bits, Whole /*lanes*/) {
  const VecBytes bytes = __builtin_convertvector(bits, VecBytes);
  std::memcpy(static_cast<void*>(to), &bytes, sizeof bytes);
}
void store_bits(e4m3* to, VecBits bits, Part lanes) {
  e4m3 whole[vec_width];
  store_bits(whole, bits, Whole{});
  std::copy_n(whole, lanes.count, to);
}

VecBits magnitude_of(Vec v) {
  return std::bit_cast<VecBits>(v) & 0x7fffffffU;
}

VecBits larger(VecBits a, VecBits b) {
  return a > b ? a : b;
}

/// Returns e4m3 bits of numbers up to 448 or NaN.
VecBits narrowed(Vec v) {
  const VecBits magnitude = magnitude_of(v);
  const VecBits normal = ((magnitude + 0x7ffffU + ((magnitude >> 20U) & 1U)) >> 20U) - (120U << 3U);
  // The sum's last bit is worth 2^-9, like a subnormal's, so the addition rounds.
  const VecBits subnormal = std::bit_cast<VecBits>(std::bit_cast<Vec>(magnitude) + 0x1p14F) -
                            std::bit_cast<std::uint32_t>(0x1p14F);
  const VecBits finite = magnitude < std::bit_cast<std::uint32_t>(0x1p-6F) ? subnormal : normal;
  const VecBits bits = magnitude > infinity_bits ? VecBits{} + 0x7fU : finite;
  return bits | ((std::bit_cast<VecBits>(v) >> 24U) & 0x80U);
}

/// The inverse, as e4m3's conversion.
Vec widened(VecBits bits) {
  const VecBits magnitude = bits & 0x7fU;
  const Vec subnormal = __builtin_convertvector(std::bit_cast<VecInt>(magnitude), Vec) * 0x1p-9F;
  const VecBits normal = (magnitude << 20U) + (120U << 23U);
  const VecBits finite = magnitude < 8U ? std::bit_cast<VecBits>(subnormal) : normal;
  const VecBits value = magnitude == 0x7fU ? VecBits{} + 0x7fc00000U : finite;
  return std::bit_cast<Vec>(value | ((bits & 0x80U) << 24U));
}

std::uint32_t largest_of(VecBits v) {
  std::uint32_t most = 0;
  for (std::int64_t i = 0; i < vec_width; ++i) most = std::max(most, v[i]);
  return most;
}

template <class T>
std::uint32_t largest_in(const T* from, std::int64_t count) {
  VecBits most{};
  for_each_vec(count, [&](std::int64_t i, auto lanes) {
    most = larger(most, magnitude_of(load(from + i, lanes)));
  });
  return largest_of(most);
}

template <class T>
void quantize_row(e4m3* to, float& scale, const T* from, std::int64_t count) {
  const auto [up, down] = fp8_scale(largest_in(from, count));
  scale = down;
  for_each_vec(count, [&](std::int64_t i, auto lanes) {
    store_bits(to + i, narrowed(load(from + i, lanes) * up), lanes);
  });
}

/// Calls visit(row, begin, end) for numbers [begin, end) in each row that a run with `numel`
/// touches, `row` counted from its first one. Many rows are shared by threads.
template <class Visit>
void for_each_row(const Fp8Run& run, std::int64_t numel, const Visit& visit) {
  const auto before = run.first % run.cols;  // elements that the first row has ahead of the run
  const auto rows = (before + numel + run.cols - 1) / run.cols;
  for_each_block(rows, rows_per_block(run.cols), [&](std::int64_t first, std::int64_t last) {
    for (auto r = first; r < last; ++r)
      visit(r, std::max<std::int64_t>(0, r * run.cols - before),
            std::min(numel, (r + 1) * run.cols - before));
  });
}

/// Columns and rows of a block that is transposed at once.
constexpr std::int64_t tile = 64;

/// Quantizes up to `tile` columns, with `rows` rows. `number_at(row, column, lanes)` returns them.
template <class NumberAt>
void quantize_block(e4m3* to, float* scales, std::int64_t rows, std::int64_t count,
                    const NumberAt& number_at) {
  std::array<std::uint32_t, tile> most{};
  for (std::int64_t r = 0; r < rows; ++r)
    for_each_vec(count, [&](std::int64_t c, auto lanes) {
      auto* const at = reinterpret_cast<float*>(most.data() + c);
      const auto before = std::bit_cast<VecBits>(load(at, lanes));
      store(at, std::bit_cast<Vec>(larger(before, magnitude_of(number_at(r, c, lanes)))), lanes);
    });
  std::array<float, tile> up{};
  for (std::int64_t c = 0; c < count; ++c) {
    const auto scale = fp8_scale(most[static_cast<std::size_t>(c)]);
    up[static_cast<std::size_t>(c)] = scale.up;
    scales[c] = scale.down;
  }
  std::array<e4m3, tile * tile> some;
  for (std::int64_t first = 0; first < rows; first += tile) {
    const auto here = std::min(tile, rows - first);
    for (std::int64_t r = 0; r < here; ++r)
      for_each_vec(count, [&](std::int64_t c, auto lanes) {
        const Vec v = number_at(first + r, c, lanes) * load(up.data() + c, lanes);
        store_bits(some.data() + r * tile + c, narrowed(v), lanes);
      });
    for (std::int64_t c = 0; c < count; ++c)
      for (std::int64_t r = 0; r < here; ++r)
        to[c * rows + first + r] = some[static_cast<std::size_t>(r * tile + c)];
  }
}

/// Quantizes the columns of a matrix with q's columns as rows, or of a stack. `number_at(row,
/// column, lanes)` counts rows through the stack.
template <class NumberAt>
void quantize_blocks_of_columns(const Fp8Matrix& q, std::int64_t cols, const NumberAt& number_at) {
  const auto rows = q.values.cols(), matrices = q.values.rows() / cols;
  const auto blocks = (cols + tile - 1) / tile;
  for_each_block(matrices * blocks, 1, [&](std::int64_t block, std::int64_t /*last*/) {
    const auto matrix = block / blocks, first = block % blocks * tile;
    const auto row = matrix * cols + first;  // of q
    quantize_block(q.values.as<e4m3>() + row * rows, q.scales.as<float>() + row, rows,
                   std::min(tile, cols - first), [&](std::int64_t r, std::int64_t c, auto lanes) {
                     return number_at(matrix * rows + r, first + c, lanes);
                   });
  });
}

void check_columns(const Fp8Matrix& q, const Tensor& x) {
  expects(x.dense() && x.numel() == q.values.numel() &&
              q.values.rows() % std::max<std::int64_t>(x.cols(), 1) == 0,
          "columns of {} x {} in {} rows", x.rows(), x.cols(), q.values.rows());
}

template <class T>
void dequantize(T* to, const Fp8Matrix& q) {
  const auto rows = q.values.rows(), cols = q.values.cols();
  const auto* const from = q.values.as<e4m3>();
  const auto* const scales = q.scales.as<float>();
  for_each_block(rows, rows_per_block(cols), [&](std::int64_t first, std::int64_t last) {
    for (auto r = first; r < last; ++r)
      for_each_vec(cols, [&](std::int64_t c, auto lanes) {
        const auto at = r * cols + c;
        store(to + at, widened(load_bits(from + at, lanes)) * scales[r], lanes);
      });
  });
}

/// Returns q in scratch memory, in another dtype with the same shape.
Tensor dequantized(const Fp8Matrix& q, DType dtype, Scratch& scratch) {
  const Tensor to =
      shaped_like(q.values, dtype, scratch.bytes(dequantized_scratch(q.values, dtype)));
  with_type(dtype, [&]<class T>(std::type_identity<T>) { dequantize(to.as<T>(), q); });
  return to;
}

/// Scratch for both operands of a product.
struct Operands {
  Scratch x, w;
};
Operands& operands() {
  thread_local static Operands scratch;
  return scratch;
}

void check(const Fp8Matrix& q) {
  expects(q.values.dtype() == DType::e4m3 && q.values.dense() && q.scales.dtype() == DType::f32 &&
              q.scales.numel() == q.values.rows(),
          "FP8 values of {} rows with {} scales", q.values.rows(), q.scales.numel());
}

}  // namespace

void quantize_rows(Stream& stream, const Fp8Matrix& q, Tensor x) {
  check(q);
  expects(same_matrix_shape(q.values, x), "quantize_rows shapes");
  stream.run([=] {
    with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
      const Rows<const T> from(x);
      const auto cols = x.cols();
      for_each_block(x.rows(), rows_per_block(cols), [&](std::int64_t first, std::int64_t last) {
        for (auto r = first; r < last; ++r)
          quantize_row(q.values.as<e4m3>() + r * cols, q.scales.as<float>()[r], from[r], cols);
      });
    });
  });
}

void quantize_columns(Stream& stream, const Fp8Matrix& q, Tensor x) {
  check(q);
  check_columns(q, x);
  if (x.numel() == 0) return;
  stream.run([=] {
    with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
      quantize_blocks_of_columns(q, x.cols(), [&](std::int64_t r, std::int64_t c, auto lanes) {
        return load(x.as<T>() + r * x.cols() + c, lanes);
      });
    });
  });
}

void requantize_columns(Stream& stream, const Fp8Matrix& q, const Fp8Matrix& w) {
  check(q);
  check(w);
  check_columns(q, w.values);
  if (w.values.numel() == 0) return;
  stream.run([=] {
    const auto cols = w.values.cols();
    quantize_blocks_of_columns(q, cols, [&](std::int64_t r, std::int64_t c, auto lanes) {
      return widened(load_bits(w.values.as<e4m3>() + r * cols + c, lanes)) *
             w.scales.as<float>()[r];
    });
  });
}

void dequantize_rows(Stream& stream, Tensor y, const Fp8Matrix& q) {
  check(q);
  expects(y.dense() && y.numel() == q.values.numel(), "dequantize_rows shapes");
  stream.run([=] {
    with_type(y.dtype(), [&]<class T>(std::type_identity<T>) { dequantize(y.as<T>(), q); });
  });
}

void row_maxima(Stream& stream, Tensor maxima, Tensor x, const Fp8Run& run) {
  expects(maxima.dtype() == DType::f32, "maxima are fp32");
  stream.run([=] {
    with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
      for_each_row(run, x.numel(), [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
        maxima.as<float>()[row] = std::bit_cast<float>(largest_in(x.as<T>() + begin, end - begin));
      });
    });
  });
}

void row_scales(Stream& stream, Tensor scales, Tensor maxima, Tensor first_rows) {
  expects(maxima.rows() == first_rows.numel() && maxima.dense(), "row_scales shapes");
  stream.run([=] {
    const auto rows = scales.numel(), ranks = maxima.rows(), count = maxima.cols();
    std::vector<std::uint32_t> most(static_cast<std::size_t>(rows));
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const auto first = first_rows.as<std::int32_t>()[rank];
      for (std::int64_t i = 0; i < std::min(count, rows - first); ++i) {
        auto& here = most[static_cast<std::size_t>(first + i)];
        here = std::max(here, std::bit_cast<std::uint32_t>(maxima.as<float>()[rank * count + i]));
      }
    }
    std::ranges::transform(most, scales.as<float>(),
                           [](std::uint32_t bits) { return fp8_scale(bits).down; });
  });
}

void quantize_run(Stream& stream, const Fp8Run& q, Tensor x) {
  q.check(x.numel());
  stream.run([=] {
    with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
      const float* const scales = q.scales.as<float>() + q.first / q.cols;
      for_each_row(q, x.numel(), [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
        const float up = 1 / scales[row];  // exact: scales are powers of two, or NaN
        for_each_vec(end - begin, [&](std::int64_t i, auto lanes) {
          store_bits(q.values.as<e4m3>() + begin + i,
                     narrowed(load(x.as<T>() + begin + i, lanes) * up), lanes);
        });
      });
    });
  });
}

void activate_and_quantize(Stream& stream, Tensor out, const Fp8Matrix& q, Tensor x,
                           Activation activation) {
  activate(stream, out, x, activation);
  quantize_rows(stream, q, out);
}

void rms_norm_and_quantize(Stream& stream, const RowNormCall& call, const Fp8Matrix& q) {
  rms_norm(stream, call);
  quantize_rows(stream, q, call.y);
}

void linear_fp8(Stream& stream, Tensor y, const Fp8Matrix& x, const Fp8Matrix& w,
                Accumulate accumulate) {
  check(x);
  check(w);
  stream.run([=] {
    auto& scratch = operands();
    gemm(Matrix(y), Matrix(dequantized(x, y.dtype(), scratch.x)),
         Matrix(dequantized(w, y.dtype(), scratch.w)).transposed(), accumulate);
  });
}

void grouped_linear_fp8(Stream& stream, Tensor y, const Fp8Matrix& x, const Fp8Matrix& w,
                        Tensor starts, Accumulate accumulate) {
  check(x);
  check(w);
  stream.run([=] {
    auto& scratch = operands();
    grouped_gemm(y, dequantized(x, y.dtype(), scratch.x), dequantized(w, y.dtype(), scratch.w),
                 starts, accumulate);
  });
}

}  // namespace llamesh::ops::cpu
