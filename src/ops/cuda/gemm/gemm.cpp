#include "ops/cuda/gemm/gemm.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <map>
#include <memory>

#include "core/error.hpp"
#include "core/file.hpp"
#include "device/buffer.hpp"
#include "device/cuda/runtime.hpp"
#include "device/device.hpp"
#include "ops/cuda/gemm/gemm_plan.hpp"
#include "ops/cuda/gemm/gemm_table.hpp"
#include "ops/cuda/kernels.hpp"

namespace llamesh::ops::cuda {
namespace {

/// Choices tuned or read so far. Separate from Library, so that reading a table takes no GPU
/// memory.
GemmTable& table() {
  static GemmTable table;
  return table;
}

/// 0: all multiprocessors.
int sm_count_target = 0;

GemmLibrary library_here() {
  const auto number = cublasLtGetVersion();
  return {device::description(),
          fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100)};
}

/// cuBLASLt handle and cached plans. One workspace suffices, because GEMMs run in order on the
/// compute stream. Never destroyed: CUDA may be gone before main() ends.
class Library {
 public:
  static Library& instance() {
    static auto& library = *new Library;
    return library;
  }

  void multiply(device::Stream& stream, const Matrix& c, const Matrix& a, const Matrix& b,
                Accumulate accumulate) {
    GemmProblem problem(c, a, b);
    auto& plan = plans_[problem];
    if (!plan) plan = std::make_unique<GemmPlan>(handle_, problem, sm_count_target, a, b);
    const auto multiply_by = [&](int candidate, const Matrix& result) {
      plan->run(handle_, candidate, result, a, b, accumulate, workspace_.data(),
                device::cuda::native(stream));
    };
    problem.accumulates = accumulate == Accumulate::yes;
    if (tunes_ && !table().contains(problem)) {
      Matrix result = c;
      device::Buffer spare;  // a sum must not count a product more than once
      if (problem.accumulates) {
        spare = device::Buffer(c.rows * c.row_stride * size_of(c.dtype));
        result.data = spare.data();
      }
      table()[problem] = fastest(stream, plan->candidates(),
                                 [&](int candidate) { multiply_by(candidate, result); });
    }
    multiply_by(std::min(wanted(problem), plan->candidates() - 1), c);
  }

  void use_candidate(int candidate) { candidate_ = candidate; }
  void tune() { tunes_ = true; }

  /// Returns a buffer for a product that must be cast; use it in compute-stream order only.
  Tensor wide(device::Stream& stream, std::int64_t rows, std::int64_t cols) {
    const std::int64_t bytes = rows * cols * size_of(DType::f32);
    if (wide_.bytes() < bytes) {
      stream.record().wait();  // the old buffer is no longer read
      wide_ = device::Buffer(bytes);
    }
    return wide_.tensor(DType::f32, {rows, cols});
  }

 private:
  Library() { check(cublasLtCreate(&handle_), "cublasLtCreate"); }

  /// Times the candidates in rounds, so that clock changes affect all alike, and keeps each one's
  /// best round. A candidate must beat the first choice by more than noise.
  template <class Multiply>
  static TunedGemm fastest(device::Stream& stream, int candidates, const Multiply& multiply_by) {
    constexpr int rounds = 4;  // the first one warms up
    constexpr double seconds_a_round = 2e-3;
    constexpr double gain = 0.98;
    std::array<double, gemm_candidates> best{};
    best.fill(std::numeric_limits<double>::infinity());
    for (int round = 0; round < rounds; ++round)
      for (int i = 0; i < candidates; ++i) {
        double& known = best.at(static_cast<std::size_t>(i));
        const int times =
            round == 0 ? 1 : std::clamp(static_cast<int>(seconds_a_round / known), 1, 100);
        stream.record().wait();
        const auto start = std::chrono::steady_clock::now();
        for (int j = 0; j < times; ++j) multiply_by(i);
        stream.record().wait();
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        known = round == 1 ? took.count() / times : std::min(known, took.count() / times);
      }
    const auto* winner = std::min_element(best.begin(), best.begin() + candidates);
    if (*winner > gain * best.front()) winner = best.begin();
    return {static_cast<int>(winner - best.begin()), 1e6 * *winner, 1e6 * best.front()};
  }

  /// Returns the choice to use. Older tables have one for both kinds of a product.
  int wanted(GemmProblem problem) const {
    auto tuned = table().find(problem);
    problem.accumulates = false;
    if (tuned == table().end()) tuned = table().find(problem);
    return tuned == table().end() ? candidate_ : tuned->second.candidate;
  }

  cublasLtHandle_t handle_ = nullptr;
  int candidate_ = 0;
  bool tunes_ = false;
  device::Buffer workspace_{gemm_workspace_bytes};
  device::Buffer wide_;
  std::map<GemmProblem, std::unique_ptr<GemmPlan>> plans_;
};

}  // namespace

void gemm(device::Stream& stream, const Matrix& c, const Matrix& a, const Matrix& b,
          Accumulate accumulate) {
  expects(a.rows == c.rows && b.cols == c.cols && a.cols == b.rows && !c.is_transposed,
          "a product of {} x {} and {} x {} into {} x {}", a.rows, a.cols, b.rows, b.cols, c.rows,
          c.cols);
  expects(a.dtype == b.dtype, "a product of {} and {}", name_of(a.dtype), name_of(b.dtype));
  if (c.rows == 0 || c.cols == 0) return;
  auto& library = Library::instance();
  if (a.dtype != DType::f32 || c.dtype == DType::f32)
    return library.multiply(stream, c, a, b, accumulate);
  // cuBLASLt cannot narrow a product of fp32 matrices. Only gradients that are reduced in bf16 in
  // an fp32 model get here, and they are dense.
  expects(c.row_stride == c.cols, "a narrowed product with rows apart");
  const Tensor wide = library.wide(stream, c.rows, c.cols);
  library.multiply(stream, Matrix(wide), a, b, Accumulate::no);
  const Tensor narrow(c.data, c.dtype, {c.rows, c.cols});
  accumulate == Accumulate::yes ? add(stream, narrow, wide) : copy(stream, narrow, wide);
}

std::string arithmetic() {
  const auto [gpu, version] = library_here();
  return fmt::format("{}, cuBLASLt {}", gpu, version);
}

void use_gemm_sm_count_target(int count) {
  sm_count_target = count;
}

void use_gemm_candidate(int candidate) {
  expects(0 <= candidate && candidate < gemm_candidates, "candidate {} of {}", candidate,
          gemm_candidates);
  Library::instance().use_candidate(candidate);
}

void tune_gemms() {
  Library::instance().tune();
}

void use_gemm_table(const std::filesystem::path& file) {
  table() = parse_table(read_file(file, 64 << 20), file.string(), library_here());
}

std::string write_gemm_table(const std::filesystem::path& file) {
  write_durably(file, to_text(table(), library_here()));
  double first = 0, best = 0;
  int others = 0;
  for (const auto& [problem, tuned] : table()) {
    first += tuned.first_us;
    best += tuned.best_us;
    others += tuned.candidate != 0 ? 1 : 0;
  }
  return fmt::format(
      "{} products timed, {} of them faster by another algorithm than cuBLASLt's first choice: "
      "{:.0f} instead of {:.0f} us for one of each",
      table().size(), others, best, first);
}

}  // namespace llamesh::ops::cuda

namespace LLAMESH_OPS_CUDA {

void linear(Stream& stream, Tensor y, Tensor x, Tensor w, Accumulate accumulate) {
  gemm(stream, Matrix(y), Matrix(x), Matrix(w).transposed(), accumulate);
}

void linear_backward_input(Stream& stream, Tensor dx, Tensor dy, Tensor w, Accumulate accumulate) {
  gemm(stream, Matrix(dx), Matrix(dy), Matrix(w), accumulate);
}

void linear_backward_weight(Stream& stream, Tensor dw, Tensor dy, Tensor x, Accumulate accumulate) {
  gemm(stream, Matrix(dw), Matrix(dy).transposed(), Matrix(x), accumulate);
}

}  // namespace LLAMESH_OPS_CUDA
