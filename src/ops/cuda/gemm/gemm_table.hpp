#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "core/dtype.hpp"

namespace llamesh::ops::cuda {

struct Matrix;

/// cuBLASLt choices considered per shape.
inline constexpr int gemm_candidates = 8;

/// Inputs that determine cuBLASLt's algorithm for c = a b: m x k times k x n, strides in elements,
/// alignments in bytes as powers of two. cuBLASLt does not ask whether c accumulates, but the
/// fastest choice depends on it.
struct GemmProblem {
  GemmProblem() = default;
  GemmProblem(const Matrix& c, const Matrix& a, const Matrix& b);

  std::int64_t m = 0, n = 0, k = 0;
  DType inputs = DType::f32, output = DType::f32;
  bool a_transposed = false, b_transposed = false;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  unsigned a_alignment = 0, b_alignment = 0, c_alignment = 0;
  bool accumulates = false;

  auto operator<=>(const GemmProblem&) const = default;
};

/// Tuning result for one product.
struct TunedGemm {
  int candidate = 0;    ///< index of the fastest cuBLASLt choice; 0 is its first
  double best_us = 0;   ///< its time
  double first_us = 0;  ///< time for the first choice

  bool operator==(const TunedGemm&) const = default;
};

using GemmTable = std::map<GemmProblem, TunedGemm>;

/// Validity of a table: the order of cuBLASLt's choices depends on these.
struct GemmLibrary {
  std::string gpu;       ///< model name
  std::string cublaslt;  ///< version
};

/// Returns the table as JSON.
std::string to_text(const GemmTable& table, const GemmLibrary& library);
/// Throws a user error naming file `name` if the text is not a table, or was made for another GPU
/// or another cuBLASLt.
GemmTable parse_table(std::string_view text, const std::string& name, const GemmLibrary& here);

}  // namespace llamesh::ops::cuda
