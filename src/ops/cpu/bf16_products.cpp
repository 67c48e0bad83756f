#include "ops/bf16_products.hpp"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <future>
#include <limits>
#include <vector>

#include "core/philox.hpp"
#include "ops/cpu/gemm.hpp"
#include "ops/cpu/instruction_set.hpp"
#include "ops/ops.hpp"

namespace llamesh::ops {
namespace {

std::atomic<Bf16Products>& way_taken() {
  static std::atomic<Bf16Products> way{has_native_bf16() ? Bf16Products::native
                                                         : Bf16Products::in_fp32};
  return way;
}

double seconds_of_this_thread() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Bf16Seconds measure() {
  constexpr std::int64_t n = 384;
  constexpr int repetitions = 5;
  std::vector<float> numbers(n * n);
  fill_normal(numbers.data(), 0, n * n, 0, "measured_bf16_products", 1.0F);
  std::vector<bf16> a(numbers.begin(), numbers.end());
  std::vector<bf16> b = a, c = a;
  const auto matrix = [](std::vector<bf16>& of) {
    return cpu::Matrix(Tensor(of.data(), DType::bf16, {n, n}));
  };
  const auto seconds_of = [&](Bf16Products way) {
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i <= repetitions; ++i) {
      const double start = seconds_of_this_thread();
      cpu::gemm(matrix(c), matrix(a), matrix(b), Accumulate::no, way);
      if (i > 0) best = std::min(best, seconds_of_this_thread() - start);  // 0 warms up
    }
    return best;
  };
  return {.native = seconds_of(Bf16Products::native), .in_fp32 = seconds_of(Bf16Products::in_fp32)};
}

}  // namespace

std::string_view name_of(Bf16Products way) {
  return way == Bf16Products::native ? "native" : "fp32";
}

bool has_native_bf16() {
  const auto isa = cpu::usable_isa();
  return isa == dnnl::cpu_isa::avx512_core_bf16 || isa == dnnl::cpu_isa::avx512_core_amx;
}

Bf16Products bf16_products() {
  return way_taken().load(std::memory_order_relaxed);
}

void use_bf16_products(Bf16Products way) {
  expects(way == Bf16Products::in_fp32 || has_native_bf16(), "native bf16 products on {}",
          instruction_set());
  way_taken().store(way, std::memory_order_relaxed);
}

Bf16Seconds measured_bf16_products() {
  static const Bf16Seconds measured = [] {
    if (!has_native_bf16())
      return Bf16Seconds{.native = std::numeric_limits<double>::infinity(), .in_fp32 = 0};
    // Runs on a separate thread, so that one core computes and neither primitives nor scratch
    // memory remain.
    return std::async(std::launch::async,
                      [] {
                        omp_set_num_threads(1);
                        return measure();
                      })
        .get();
  }();
  return measured;
}

}  // namespace llamesh::ops
