#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "core/dtype.hpp"

namespace llamesh::ops::cuda {

struct Matrix;

/// cuBLASLt's choices for a shape that are known.
inline constexpr int gemm_candidates = 8;

/// What cuBLASLt's choice of an algorithm for c = a b depends on: m x k times k x n; strides in
/// elements; alignments in bytes, as powers of two.
struct GemmProblem {
  GemmProblem() = default;
  GemmProblem(const Matrix& c, const Matrix& a, const Matrix& b);

  std::int64_t m = 0, n = 0, k = 0;
  DType inputs = DType::f32, output = DType::f32;
  bool a_transposed = false, b_transposed = false;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  unsigned a_alignment = 0, b_alignment = 0, c_alignment = 0;

  auto operator<=>(const GemmProblem&) const = default;
};

/// What timing found for one product.
struct TunedGemm {
  int candidate = 0;    ///< which of cuBLASLt's choices is the fastest; 0 is its first
  double best_us = 0;   ///< of that one
  double first_us = 0;  ///< of the first

  bool operator==(const TunedGemm&) const = default;
};

using GemmTable = std::map<GemmProblem, TunedGemm>;

/// What a table holds for: the order of cuBLASLt's choices is a matter of these.
struct GemmLibrary {
  std::string gpu;       ///< the kind
  std::string cublaslt;  ///< the version
};

/// The table as JSON.
std::string to_text(const GemmTable& table, const GemmLibrary& library);
/// Throws a user error, in which `name` names the file, where the text is no table, or is
/// another GPU's or another cuBLASLt's.
GemmTable parse_table(std::string_view text, const std::string& name, const GemmLibrary& here);

}  // namespace llamesh::ops::cuda
