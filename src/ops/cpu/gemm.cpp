#include "ops/cpu/gemm.hpp"

#include <array>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <utility>

#include "device/host_memory.hpp"
#include "ops/cpu/instruction_set.hpp"
#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/scratch.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

/// An upper bound on the code that oneDNN maps for a primitive. If the mapping fails, oneDNN
/// crashes.
constexpr std::int64_t code_bytes = std::int64_t{32} << 20;

dnnl::engine& engine() {
  static dnnl::engine cpu = [] {
    usable_isa();  // must precede every other oneDNN call
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return cpu;
}

/// Cache key for a GEMM primitive.
using Key = std::array<std::int64_t, 12>;

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::size_t hash = 1469598103934665603U;
    for (const auto number : key) hash = (hash ^ static_cast<std::size_t>(number)) * 1099511628211U;
    return hash ^ (hash >> 29U);
  }
};

Key key_of(const Matrix& c, const Matrix& a, const Matrix& b, Accumulate accumulate) {
  return {c.rows,
          c.cols,
          a.cols,
          c.row_stride,
          a.row_stride,
          a.col_stride,
          b.row_stride,
          b.col_stride,
          static_cast<std::int64_t>(a.dtype),
          static_cast<std::int64_t>(b.dtype),
          static_cast<std::int64_t>(c.dtype),
          static_cast<std::int64_t>(accumulate)};
}

dnnl::memory::data_type type_of(const Matrix& m) {
  return m.dtype == DType::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

dnnl::memory::desc description(const Matrix& m) {
  return {{m.rows, m.cols}, type_of(m), dnnl::memory::dims{m.row_stride, m.col_stride}};
}

/// A product's matrices.
struct Operands {
  Matrix c, a, b;
};

/// Returns the matrices with `size` in place of the ragged size, if there is one.
Operands with_size(Operands operands, Ragged ragged, std::int64_t size) {
  auto& [c, a, b] = operands;
  if (ragged.size == Ragged::Size::m) c.rows = a.rows = size;
  if (ragged.size == Ragged::Size::k) a.cols = b.rows = size;
  return operands;
}

/// Value of a size that a primitive learns from each call.
constexpr std::int64_t any_size = DNNL_RUNTIME_DIM_VAL;

/// Layout of b: as it is, or copied to the one that oneDNN's kernels read fastest.
enum class Packed : std::int8_t { no, yes };

/// Decides from shapes and types alone, so that a run's results stay reproducible. Copying pays off
/// above about 700 rows of c, but in fp32 not for weight gradients, whose left factor is transposed
/// (docs/measured/performance.md). Only AMD CPUs without AMX were measured.
Packed packing_of(const Matrix& c, const Matrix& a, const Matrix& b, Ragged ragged) {
  constexpr std::int64_t min_rows = 1024;
  constexpr auto max_bytes = std::int64_t{32} << 20;
  const auto isa = usable_isa();
  const bool is_measured = __builtin_cpu_is("amd") != 0;
  const bool avx512 = isa == dnnl::cpu_isa::avx512_core || isa == dnnl::cpu_isa::avx512_core_vnni ||
                      isa == dnnl::cpu_isa::avx512_core_bf16;
  const bool gains = c.rows >= min_rows && (a.dtype == DType::bf16 || a.col_stride == 1);
  const bool fits = b.rows * b.cols * size_of(b.dtype) <= max_bytes;
  return is_measured && avx512 && ragged.size == Ragged::Size::none && gains && fits ? Packed::yes
                                                                                     : Packed::no;
}

dnnl::matmul::primitive_desc describe_matmul(const Matrix& c, const Matrix& a, const Matrix& b,
                                             Accumulate accumulate, Packed packed) {
  const auto any = dnnl::memory::format_tag::any;
  const auto right = packed == Packed::yes ? dnnl::memory::desc{{b.rows, b.cols}, type_of(b), any}
                                           : description(b);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (accumulate == Accumulate::yes) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
#if DNNL_VERSION_MAJOR >= 3
  return {engine(), description(a), right, description(c), attributes};
#else
  return {{description(a), right, description(c)}, attributes, engine()};
#endif
}

/// Scratch bytes for a call: the packed b, if any, then oneDNN's own.
struct Space {
  Space() = default;
  Space(const dnnl::matmul::primitive_desc& primitive, Packed packed)
      : library(static_cast<std::int64_t>(primitive.scratchpad_desc().get_size())) {
    if (packed == Packed::no) return;
    const auto bytes = static_cast<std::int64_t>(primitive.weights_desc().get_size());
    packed_b = (bytes + 63) / 64 * 64;
  }
  std::int64_t total() const { return packed_b + library; }
  std::int64_t library = 0, packed_b = 0;
};

/// A matmul whose shapes are fixed except for a ragged size. Each execution points its argument
/// objects at new data.
class Matmul {
 public:
  Matmul(const Matrix& c, const Matrix& a, const Matrix& b, Accumulate accumulate, Packed packed)
      : packed_(packed), is_ragged_(c.rows == any_size || a.cols == any_size) {
    device::check_address_space(code_bytes);
    const auto primitive = describe_matmul(c, a, b, accumulate, packed);
    matmul_ = dnnl::matmul(primitive);
    space_ = Space(primitive, packed);
    scratchpad_ = dnnl::memory(primitive.scratchpad_desc(), engine(), nullptr);
    if (packed_ == Packed::yes)
      packed_b_ = dnnl::memory(primitive.weights_desc(), engine(), nullptr);
    if (!is_ragged_) describe(c, a, b);
    if (packed_ == Packed::yes) pack_ = dnnl::reorder(b_, packed_b_);
  }

  void execute(const Matrix& c, const Matrix& a, const Matrix& b) {
    thread_local dnnl::stream stream(engine());
    thread_local Scratch scratch;
    if (is_ragged_) describe(c, a, b);
    a_.set_data_handle(a.data);
    b_.set_data_handle(b.data);
    c_.set_data_handle(c.data);
    auto* const space = scratch.bytes(space_.total());
    scratchpad_.set_data_handle(space + space_.packed_b);
    if (packed_ == Packed::yes) {
      packed_b_.set_data_handle(space);
      pack_.execute(stream, b_, packed_b_);
    }
    matmul_.execute(stream, arguments_);
    stream.wait();
  }

 private:
  void describe(const Matrix& c, const Matrix& a, const Matrix& b) {
    a_ = dnnl::memory(description(a), engine(), nullptr);
    b_ = dnnl::memory(description(b), engine(), nullptr);
    c_ = dnnl::memory(description(c), engine(), nullptr);
    arguments_ = {{DNNL_ARG_SRC, a_},
                  {DNNL_ARG_WEIGHTS, packed_ == Packed::yes ? packed_b_ : b_},
                  {DNNL_ARG_DST, c_},
                  {DNNL_ARG_SCRATCHPAD, scratchpad_}};
  }

  Packed packed_;
  bool is_ragged_;
  dnnl::matmul matmul_;
  dnnl::reorder pack_;
  dnnl::memory a_, b_, c_, packed_b_, scratchpad_;
  Space space_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

/// Runs the GEMM in the given dtypes. Each thread caches its own primitives, which avoids a lock.
void run_matmul(const Matrix& c, const Matrix& a, const Matrix& b, Accumulate accumulate,
                Ragged ragged) {
  thread_local std::unordered_map<Key, Matmul, KeyHash> cache;
  const auto [any_c, any_a, any_b] = with_size({c, a, b}, ragged, any_size);
  const auto key = key_of(any_c, any_a, any_b, accumulate);
  auto found = cache.find(key);
  if (found == cache.end())
    found = cache.emplace(key, Matmul(any_c, any_a, any_b, accumulate, packing_of(c, a, b, ragged)))
                .first;
  found->second.execute(c, a, b);
}

/// `to` = or += `from`, row by row along the dim with stride 1. Shapes are equal.
void convert(const Matrix& to, const Matrix& from, Accumulate accumulate) {
  with_type(to.dtype, [&]<class To>(std::type_identity<To>) {
    with_type(from.dtype, [&]<class From>(std::type_identity<From>) {
      for_each_block(to.rows, rows_per_block(to.cols), [&](std::int64_t first, std::int64_t last) {
        for (auto r = first; r < last; ++r) {
          auto* out = static_cast<To*>(to.data) + r * to.row_stride;
          const auto* in = static_cast<const From*>(from.data) + r * from.row_stride;
          for_each_vec(to.cols, [&](std::int64_t i, auto lanes) {
            const auto old = accumulate == Accumulate::yes ? load(out + i, lanes) : Vec{};
            store(out + i, old + load(in + i, lanes), lanes);
          });
        }
      });
    });
  });
}

/// Returns a dense fp32 matrix at `data` with the shape and orientation of `m`.
Matrix fp32_like(const Matrix& m, float* data) {
  const bool upright = m.col_stride == 1;
  Matrix dense = upright ? m : m.transposed();
  dense.data = data;
  dense.dtype = DType::f32;
  dense.row_stride = dense.cols;
  return upright ? dense : dense.transposed();
}

/// Returns the numel of as_fp32()'s copy; 0 if it makes none.
std::int64_t copied_numel(const Matrix& m) {
  return m.dtype == DType::f32 ? 0 : m.rows * m.cols;
}

/// Returns the matrix in fp32: itself, or a dense copy in `scratch`, which has room for `largest`,
/// with the same orientation.
Matrix as_fp32(const Matrix& m, const Matrix& largest, Scratch& scratch) {
  if (m.dtype == DType::f32) return m;
  const Matrix copy = fp32_like(m, scratch.array<float>(copied_numel(largest)));
  if (m.col_stride == 1)
    convert(copy, m, Accumulate::no);
  else
    convert(copy.transposed(), m.transposed(), Accumulate::no);
  return copy;
}

/// Returns true if oneDNN takes these dtypes as they are.
bool multiplies_directly(const Matrix& c, const Matrix& a, Bf16Products way) {
  return a.dtype == DType::bf16 ? way == Bf16Products::native : c.dtype == DType::f32;
}

Space space_for(const Matrix& c, const Matrix& a, const Matrix& b, Accumulate accumulate,
                Ragged ragged) {
  const auto packed = packing_of(c, a, b, ragged);
  const auto [any_c, any_a, any_b] = with_size({c, a, b}, ragged, any_size);
  return {describe_matmul(any_c, any_a, any_b, accumulate, packed), packed};
}

}  // namespace

Matrix Matrix::transposed() const {
  Matrix t = *this;
  std::swap(t.rows, t.cols);
  std::swap(t.row_stride, t.col_stride);
  return t;
}

void gemm(const Matrix& c, const Matrix& a, const Matrix& b, Accumulate accumulate,
          Bf16Products way, Ragged ragged) {
  expects(c.rows == a.rows && c.cols == b.cols && a.cols == b.rows,
          "GEMM shapes ({}, {}) = ({}, {}) ({}, {})", c.rows, c.cols, a.rows, a.cols, b.rows,
          b.cols);
  expects(a.dtype == b.dtype, "GEMM operands in {} and {}", name_of(a.dtype), name_of(b.dtype));
  if (c.rows == 0 || c.cols == 0) return;
  if (multiplies_directly(c, a, way)) {
    run_matmul(c, a, b, accumulate, ragged);
    return;
  }
  thread_local Scratch scratch_a, scratch_b, scratch_c;
  const auto largest = with_size({c, a, b}, ragged, ragged.max);
  const auto wide_a = as_fp32(a, largest.a, scratch_a);
  const auto wide_b = as_fp32(b, largest.b, scratch_b);
  if (c.dtype == DType::f32) {
    run_matmul(c, wide_a, wide_b, accumulate, ragged);
    return;
  }
  const Matrix wide_c = fp32_like(c, scratch_c.array<float>(copied_numel(largest.c)));
  run_matmul(wide_c, wide_a, wide_b, Accumulate::no, ragged);
  convert(c, wide_c, accumulate);
}

GemmScratch gemm_scratch(const Matrix& c, const Matrix& a, const Matrix& b, Accumulate accumulate,
                         Bf16Products way, Ragged ragged) {
  if (c.rows == 0 || c.cols == 0) return {};
  if (multiplies_directly(c, a, way))
    return {.library = space_for(c, a, b, accumulate, ragged).total()};
  const auto fp32 = [](const Matrix& m) {
    return m.dtype == DType::f32 ? m : fp32_like(m, nullptr);
  };
  const auto largest = with_size({c, a, b}, ragged, ragged.max);
  const auto bytes = [](const Matrix& m) { return copied_numel(m) * size_of(DType::f32); };
  // A bf16 result accumulates during conversion.
  const auto added = c.dtype == DType::f32 ? accumulate : Accumulate::no;
  return {.a = bytes(largest.a),
          .b = bytes(largest.b),
          .c = bytes(largest.c),
          .library = space_for(fp32(c), fp32(a), fp32(b), added, ragged).total()};
}

}  // namespace llamesh::ops::cpu
