#include <cmath>
#include <thread>
#include <tuple>

#include "device/memory_meter.hpp"
#include "ops/bf16_products.hpp"
#include "ops/cpu/gemm.hpp"
#include "ops/cpu/instruction_set.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/thread_independence.hpp"
#include "random_tensor.hpp"

namespace llamesh::test {
namespace {

using reference::Index;
using reference::product;

struct GemmSizes {
  std::int64_t m, in, out, gap;
};
/// In the last two, results have enough rows for packing: y and dx, then dw.
const GemmSizes gemm_sizes[] = {{1, 6, 3, 0},     {1, 18, 33, 7},   {37, 64, 257, 5},
                                {64, 96, 48, 32}, {130, 18, 33, 1}, {1030, 40, 70, 3},
                                {45, 30, 1030, 2}};

class Linear : public EachDType {};
INSTANTIATE_TEST_SUITE_P(Types, Linear, ::testing::Values(DType::f32, DType::bf16), dtype_name);

Index unsigned_of(std::int64_t n) {
  return static_cast<Index>(n);
}

/// Compares a kernel that overwrites or adds with the exact product.
void check(const Matrix& result, const reference::Numbers& before, const reference::Numbers& exact,
           Accumulate accumulate, const char* what) {
  const auto expected = accumulate == Accumulate::yes ? sum(before, exact) : exact;
  // The reference reads the rounded inputs, so only the result's own rounding remains.
  expect_near(result.numbers(), expected, tolerance(result.view().dtype()), what);
  EXPECT_TRUE(result.gaps_untouched()) << what;
}

TEST_P(Linear, ForwardIsXTimesWTransposed) {
  for (const auto& s : gemm_sizes)
    for (const auto accumulate : {Accumulate::no, Accumulate::yes})
      for (const auto result : {DType::f32, DType::bf16}) {
        const Matrix x(dtype(), s.m, s.in, s.gap), w(dtype(), s.out, s.in, s.gap);
        const Matrix y(result, s.m, s.out, s.gap);
        const auto before = y.numbers();
        ops::linear(stream, y, x, w, accumulate);
        check(y, before,
              product(x.numbers(), false, w.numbers(), true, unsigned_of(s.m), unsigned_of(s.out),
                      unsigned_of(s.in)),
              accumulate, "y");
      }
}

TEST_P(Linear, InputGradientIsDyTimesW) {
  for (const auto& s : gemm_sizes)
    for (const auto accumulate : {Accumulate::no, Accumulate::yes}) {
      const Matrix dy(dtype(), s.m, s.out, s.gap), w(dtype(), s.out, s.in, s.gap);
      const Matrix dx(dtype(), s.m, s.in, s.gap);
      const auto before = dx.numbers();
      ops::linear_backward_input(stream, dx, dy, w, accumulate);
      check(dx, before,
            product(dy.numbers(), false, w.numbers(), false, unsigned_of(s.m), unsigned_of(s.in),
                    unsigned_of(s.out)),
            accumulate, "dx");
    }
}

TEST_P(Linear, WeightGradientIsDyTransposedTimesX) {
  for (const auto& s : gemm_sizes)
    for (const auto accumulate : {Accumulate::no, Accumulate::yes})
      for (const auto result : {DType::f32, DType::bf16}) {
        const Matrix dy(dtype(), s.m, s.out, s.gap), x(dtype(), s.m, s.in, s.gap);
        const Matrix dw(result, s.out, s.in, s.gap);
        const auto before = dw.numbers();
        ops::linear_backward_weight(stream, dw, dy, x, accumulate);
        check(dw, before,
              product(dy.numbers(), true, x.numbers(), false, unsigned_of(s.out), unsigned_of(s.in),
                      unsigned_of(s.m)),
              accumulate, "dw");
      }
}

// The loss L = sum(c * y) has dL/dy = c; dx and dw must match its finite differences.
TEST_P(Linear, GradientsAreFiniteDifferences) {
  const std::int64_t m = 3, in = 6, out = 5;
  const Matrix x(dtype(), m, in), w(dtype(), out, in), c(dtype(), m, out);
  const Matrix dx(DType::f32, m, in), dw(DType::f32, out, in);
  ops::linear_backward_input(stream, dx, c, w, Accumulate::no);
  ops::linear_backward_weight(stream, dw, c, x, Accumulate::no);
  const auto of_x = [&](const auto& v) { return product(v, false, w.numbers(), true, 3, 5, 6); };
  const auto of_w = [&](const auto& v) { return product(x.numbers(), false, v, true, 3, 5, 6); };
  expect_near(dx.numbers(), reference::numerical_gradient(of_x, x.numbers(), c.numbers()), 1e-5,
              "dx");
  expect_near(dw.numbers(), reference::numerical_gradient(of_w, w.numbers(), c.numbers()), 1e-5,
              "dw");
}

/// A new thread has no scratch yet, so what it allocates is what the call needs.
TEST_P(Linear, ScratchIsAsPlanned) {
  using ops::cpu::gemm_scratch;
  const auto in_use = [] {
    const auto bytes = device::MemoryMeter::instance().by_use();
    return bytes[static_cast<std::size_t>(device::MemoryUse::scratch)];
  };
  for (const std::int64_t rows : {96, 1100}) {
    SCOPED_TRACE(rows);
    const Matrix a(dtype(), rows, 200), b(dtype(), 200, 300), c(dtype(), rows, 300);
    const ops::cpu::Matrix left(a), right(b), result(c);
    std::int64_t taken = 0;
    for (const bool independent : {false, true}) {
      ops::use_thread_independent_products(independent);
      std::thread([&] {
        const auto before = in_use();
        ops::cpu::gemm(result, left, right, Accumulate::no);
        taken = in_use() - before;
      }).join();
      const auto planned =
          gemm_scratch(result, left, right, Accumulate::no, ops::cpu::max_threads());
      EXPECT_EQ(taken, planned.a + planned.b + planned.c + planned.library);
    }
    ops::use_thread_independent_products(false);
  }
}

TEST_P(Linear, BitsDoNotDependOnThreadsIfTheyMustNot) {
  ops::use_thread_independent_products(true);
  // Equal and unequal blocks, a long inner dimension, and a single block.
  for (const auto& [m, out, in] : {std::tuple(512, 768, 96), {300, 517, 64}, {8, 24, 5000}}) {
    const Matrix x(dtype(), m, in), w(dtype(), out, in), dy(dtype(), m, out);
    const Matrix y(dtype(), m, out), dw(DType::f32, out, in), expected(DType::f32, out, in);
    expect_same_for_any_threads([&] { ops::linear(stream, y, x, w, Accumulate::no); },
                                [&] { return y.numbers(); });
    expect_same_for_any_threads(
        [&] { ops::linear_backward_weight(stream, dw, dy, x, Accumulate::no); },
        [&] { return dw.numbers(); });
    ops::use_thread_independent_products(false);
    ops::linear_backward_weight(stream, expected, dy, x, Accumulate::no);
    ops::use_thread_independent_products(true);
    expect_near(dw.numbers(), expected.numbers(), 1e-5 * std::sqrt(m), "dw");
  }
  ops::use_thread_independent_products(false);
}

TEST_P(Linear, RefusesShapesThatDoNotFit) {
  const Matrix x(dtype(), 4, 6), w(dtype(), 5, 7), y(dtype(), 4, 5);
  EXPECT_THROW(ops::linear(stream, y, x, w, Accumulate::no), std::exception);
}

// Both methods give the product, up to the result's rounding.
TEST(Bf16Products, AreAlikeInBothWays) {
  auto stream = device::Stream::calling_thread();
  const Matrix x(DType::bf16, 37, 64), w(DType::bf16, 50, 64);
  const auto exact = product(x.numbers(), false, w.numbers(), true, 37, 50, 64);
  const auto taken = ops::bf16_products();
  for (const auto way : {ops::Bf16Products::native, ops::Bf16Products::in_fp32}) {
    if (way == ops::Bf16Products::native && !ops::has_native_bf16()) continue;
    ops::use_bf16_products(way);
    EXPECT_EQ(ops::bf16_products(), way);
    const Matrix y(DType::bf16, 37, 50);
    ops::linear(stream, y, x, w, Accumulate::no);
    expect_near(y.numbers(), exact, tolerance(DType::bf16), std::string(name_of(way)).c_str());
  }
  ops::use_bf16_products(taken);
}

TEST(Bf16Products, NativeOnesNeedTheInstructions) {
  if (ops::has_native_bf16()) {
    EXPECT_EQ(ops::bf16_products(), ops::Bf16Products::native);
  } else {
    EXPECT_EQ(ops::bf16_products(), ops::Bf16Products::in_fp32);
    EXPECT_THROW(ops::use_bf16_products(ops::Bf16Products::native), std::exception);
    EXPECT_EQ(ops::measured_bf16_products().faster(), ops::Bf16Products::in_fp32);
  }
}

TEST(Bf16Products, AreMeasuredOnce) {
  const auto first = ops::measured_bf16_products(), second = ops::measured_bf16_products();
  EXPECT_EQ(first.native, second.native);
  EXPECT_EQ(first.in_fp32, second.in_fp32);
  EXPECT_EQ(std::isfinite(first.native), ops::has_native_bf16());
}

// CPUID on a Sapphire Rapids: palette 1 has 8 tiles with 16 rows, 64 bytes each.
const ops::cpu::AmxLeaves sapphire_rapids = {
    .features = {.eax = 2, .ebx = 0xF1BF27EB, .ecx = 0x1B415FFE, .edx = 0xFFC14410},
    .palettes = {.eax = 1},
    .palette1 = {.eax = 0x04002000, .ebx = 0x00080040, .ecx = 0x00000010}};

TEST(InstructionSet, AmxIsUsedWithItsTilePalette) {
  EXPECT_FALSE(ops::cpu::lacks_tile_palette(sapphire_rapids));
}

TEST(InstructionSet, AmxIsNotUsedWithoutItsTilePalette) {
  auto none = sapphire_rapids;
  none.palettes = none.palette1 = {};
  EXPECT_TRUE(ops::cpu::lacks_tile_palette(none));
  auto no_palette = sapphire_rapids;
  no_palette.palettes.eax = 0;
  EXPECT_TRUE(ops::cpu::lacks_tile_palette(no_palette));
  for (const std::uint32_t half : {0x0000FFFFU, 0xFFFF0000U})
    for (const auto word : {&ops::cpu::CpuidLeaf::eax, &ops::cpu::CpuidLeaf::ebx}) {
      auto no_size = sapphire_rapids;
      no_size.palette1.*word &= half;
      EXPECT_TRUE(ops::cpu::lacks_tile_palette(no_size));
    }
  auto no_rows = sapphire_rapids;
  no_rows.palette1.ecx = 0;
  EXPECT_TRUE(ops::cpu::lacks_tile_palette(no_rows));
}

TEST(InstructionSet, ACpuWithoutAmxLacksNothing) {
  auto zen5 = sapphire_rapids;
  zen5.features.edx &= ~(1U << 22U | 1U << 24U | 1U << 25U);
  zen5.palettes = zen5.palette1 = {};
  EXPECT_FALSE(ops::cpu::lacks_tile_palette(zen5));
}

TEST(InstructionSet, ALowerLimitOfTheUserIsKnown) {
  for (const char* lower : {"SSE41", "AVX", "AVX2", "avx2", "AVX512_CORE", "AVX512_CORE_BF16"})
    EXPECT_TRUE(ops::cpu::excludes_amx(lower)) << lower;
  for (const char* none : {"", "ALL", "AVX512_CORE_AMX", "DEFAULT", "AVX3"})
    EXPECT_FALSE(ops::cpu::excludes_amx(none)) << none;
}

// Runs in the environments of ops/linear_avx2 and ops/linear_without_palette.
TEST(InstructionSet, IsWithinTheLimits) {
  const std::string name = ops::instruction_set();
  const char* const limit = std::getenv("ONEDNN_MAX_CPU_ISA");
  if (limit != nullptr && std::string(limit) == "AVX2") {
    EXPECT_TRUE(name == "avx2" || name == "avx" || name == "sse41") << name;
    EXPECT_EQ(ops::why_no_amx(), "") << "not used in any case";
  } else if (std::getenv("LLAMESH_HIDE_AMX_PALETTE") != nullptr) {
    EXPECT_NE(name, "avx512_core_amx");
    EXPECT_NE(ops::why_no_amx(), "");
  } else {
    EXPECT_GT(name.size(), 2U);
  }
}

}  // namespace
}  // namespace llamesh::test
