#include "ops/cpu/gemm.hpp"

#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/host_memory.hpp"
#include "ops/cpu/instruction_set.hpp"
#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/scratch.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"
#include "ops/thread_independence.hpp"

namespace llamesh::ops {
namespace {

std::atomic<bool> thread_independent{false};

}  // namespace

void use_thread_independent_products(bool use) {
  thread_independent = use;
}

bool thread_independent_products() {
  return thread_independent.load(std::memory_order_relaxed);
}

}  // namespace llamesh::ops

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

/// A product's matrices.
struct Operands {
  Matrix c, a, b;
};

/// Cache key for a product.
using Key = std::array<std::int64_t, 13>;

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::size_t hash = 1469598103934665603U;
    for (const auto number : key) hash = (hash ^ static_cast<std::size_t>(number)) * 1099511628211U;
    return hash ^ (hash >> 29U);
  }
};

Key key_of(const Operands& operands, Accumulate accumulate) {
  const auto& [c, a, b] = operands;
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
          static_cast<std::int64_t>(accumulate),
          static_cast<std::int64_t>(thread_independent_products())};
}

dnnl::memory::data_type type_of(const Matrix& m) {
  return m.dtype == DType::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

dnnl::memory::desc description(const Matrix& m) {
  return {{m.rows, m.cols}, type_of(m), dnnl::memory::dims{m.row_stride, m.col_stride}};
}

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
Packed packing_of(const Operands& operands, Ragged ragged) {
  const auto& [c, a, b] = operands;
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

dnnl::matmul::primitive_desc describe_matmul(const Operands& operands, Accumulate accumulate,
                                             Packed packed) {
  const auto& [c, a, b] = operands;
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
  Matmul(const Operands& operands, Accumulate accumulate, Ragged ragged)
      : packed_(packing_of(operands, ragged)), is_ragged_(ragged.size != Ragged::Size::none) {
    const auto any = with_size(operands, ragged, any_size);
    device::check_address_space(code_bytes);
    const auto primitive = describe_matmul(any, accumulate, packed_);
    matmul_ = dnnl::matmul(primitive);
    space_ = Space(primitive, packed_);
    scratchpad_ = dnnl::memory(primitive.scratchpad_desc(), engine(), nullptr);
    if (packed_ == Packed::yes)
      packed_b_ = dnnl::memory(primitive.weights_desc(), engine(), nullptr);
    if (!is_ragged_) describe(operands);
    if (packed_ == Packed::yes) pack_ = dnnl::reorder(b_, packed_b_);
  }

  std::int64_t scratch_bytes() const { return space_.total(); }

  /// `space` has scratch_bytes().
  void execute(const Operands& operands, std::byte* space) {
    const auto& [c, a, b] = operands;
    thread_local dnnl::stream stream(engine());
    if (is_ragged_) describe(operands);
    a_.set_data_handle(a.data);
    b_.set_data_handle(b.data);
    c_.set_data_handle(c.data);
    scratchpad_.set_data_handle(space + space_.packed_b);
    if (packed_ == Packed::yes) {
      packed_b_.set_data_handle(space);
      pack_.execute(stream, b_, packed_b_);
    }
    matmul_.execute(stream, arguments_);
    stream.wait();
  }

 private:
  void describe(const Operands& operands) {
    const auto& [c, a, b] = operands;
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

/// While it lives, oneDNN makes and runs matmuls for the calling thread alone.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

std::optional<OneThread> one_thread_if_independent() {
  return thread_independent_products() ? std::make_optional<OneThread>() : std::nullopt;
}

/// Divides the rows in c into blocks: one that oneDNN divides among all threads, or, if the bits
/// must not depend on their number, up to 16 with at least 128 rows, for a thread each. Columns
/// stay whole: oneDNN has its fast kernels only for results without gaps between their rows. Ragged
/// rows are not divided.
class Blocks {
 public:
  Blocks(const Operands& whole, Ragged ragged) : whole_(whole) {
    if (!thread_independent_products() || ragged.size == Ragged::Size::m) return;
    constexpr std::int64_t max_count = 16, min_rows = 128;
    while (count_ < max_count && whole.c.rows / count_ >= 2 * min_rows) count_ *= 2;
  }

  std::int64_t count() const { return count_; }
  /// Returns how many threads have blocks to themselves; 1 if all work on the only block.
  std::int64_t teams(std::int64_t threads) const { return std::min(threads, count()); }
  Operands operator[](std::int64_t i) const {
    const auto& [c, a, b] = whole_;
    const auto first = c.rows * i / count_, rows = c.rows * (i + 1) / count_ - first;
    return {c.row_range(first, rows), a.row_range(first, rows), b};
  }
  /// Returns true if a is transposed, so that its blocks have gaps, which their copies have not.
  bool copies_a() const { return count_ > 1 && whole_.a.col_stride != 1; }

 private:
  Operands whole_;
  std::int64_t count_ = 1;
};

/// Returns a transposed matrix without gaps at `data`.
Matrix without_gaps(Matrix transposed, std::byte* data) {
  transposed.data = data;
  transposed.col_stride = transposed.rows;
  return transposed;
}

/// Returns its bytes, in whole cache lines.
std::int64_t bytes_without_gaps(const Matrix& m) {
  return (m.rows * m.cols * size_of(m.dtype) + 63) / 64 * 64;
}

/// Copies a transposed matrix to one without gaps.
void copy_transposed(const Matrix& to, const Matrix& from) {
  const auto bytes = size_of(from.dtype);
  for (std::int64_t col = 0; col < from.cols; ++col)
    std::memcpy(static_cast<std::byte*>(to.data) + col * to.col_stride * bytes,
                static_cast<const std::byte*>(from.data) + col * from.col_stride * bytes,
                static_cast<std::size_t>(from.rows * bytes));
}

/// Returns a block's operands as its matmul sees them: a transposed a copied to `space`, if it must
/// be.
Operands prepared(const Blocks& blocks, std::int64_t i, std::byte* space) {
  auto block = blocks[i];
  if (blocks.copies_a()) block.a = without_gaps(block.a, space);
  return block;
}

/// Scratch bytes per team: the copied a, then its matmul's.
struct TeamScratch {
  std::int64_t copied_a = 0, matmul = 0;
  std::int64_t total() const { return copied_a + (matmul + 63) / 64 * 64; }

  TeamScratch() = default;
  TeamScratch(const Blocks& blocks, Accumulate accumulate, Ragged ragged) {
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < blocks.count(); ++i) {
      const auto block = prepared(blocks, i, nullptr);
      if (!seen.insert(block.c.rows).second) continue;
      const auto packed = packing_of(block, ragged);
      const auto described =
          describe_matmul(with_size(block, ragged, any_size), accumulate, packed);
      matmul = std::max(matmul, Space(described, packed).total());
      if (blocks.copies_a()) copied_a = std::max(copied_a, bytes_without_gaps(block.a));
    }
  }
};

/// A product in oneDNN's dtypes: a matmul per block.
class Product {
 public:
  Product(const Blocks& blocks, Accumulate accumulate, Ragged ragged) {
    const auto alone = one_thread_if_independent();
    scratch_ = {blocks, accumulate, ragged};
    for (std::int64_t i = 0; i < blocks.count(); ++i)
      matmuls_.emplace_back(prepared(blocks, i, nullptr), accumulate, ragged);
  }

  void execute(const Blocks& blocks) {
    thread_local Scratch scratch;
    const auto teams = blocks.teams(max_threads());
    auto* const space = scratch.bytes(teams * scratch_.total());
    if (!thread_independent_products()) return matmuls_.front().execute(blocks[0], space);
    for_each_task(teams, [&](std::int64_t team) {
      const OneThread alone;
      auto* const own = space + team * scratch_.total();
      for (auto i = team; i < blocks.count(); i += teams) {
        const auto block = prepared(blocks, i, own);
        if (blocks.copies_a()) copy_transposed(block.a, blocks[i].a);
        matmuls_[static_cast<std::size_t>(i)].execute(block, own + scratch_.copied_a);
      }
    });
  }

 private:
  TeamScratch scratch_;
  std::vector<Matmul> matmuls_;
};

/// Runs the GEMM in the given dtypes. Each thread caches its own products, which avoids a lock.
void run_matmul(const Matrix& c, const Matrix& a, const Matrix& b, Accumulate accumulate,
                Ragged ragged) {
  thread_local std::unordered_map<Key, Product, KeyHash> cache;
  const auto key = key_of(with_size({c, a, b}, ragged, any_size), accumulate);
  const Blocks blocks({c, a, b}, ragged);
  auto found = cache.find(key);
  if (found == cache.end()) found = cache.emplace(key, Product(blocks, accumulate, ragged)).first;
  found->second.execute(blocks);
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

}  // namespace

Matrix Matrix::transposed() const {
  Matrix t = *this;
  std::swap(t.rows, t.cols);
  std::swap(t.row_stride, t.col_stride);
  return t;
}

Matrix Matrix::row_range(std::int64_t first, std::int64_t count) const {
  Matrix range = *this;
  if (data != nullptr)
    range.data = static_cast<std::byte*>(data) + first * row_stride * size_of(dtype);
  range.rows = count;
  return range;
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
                         std::int64_t threads, Bf16Products way, Ragged ragged) {
  if (c.rows == 0 || c.cols == 0) return {};
  const auto library = [&](const Operands& of, Accumulate added) {
    const auto alone = one_thread_if_independent();
    const Blocks blocks(of, ragged);
    return blocks.teams(threads) * TeamScratch(blocks, added, ragged).total();
  };
  if (multiplies_directly(c, a, way)) return {.library = library({c, a, b}, accumulate)};
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
          .library = library({fp32(c), fp32(a), fp32(b)}, added)};
}

}  // namespace llamesh::ops::cpu
