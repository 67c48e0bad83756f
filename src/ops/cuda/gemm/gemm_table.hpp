#pragma once

#include <filesystem>
#include <map>

#include "ops/cuda/gemm/gemm_plan.hpp"

namespace llamesh::ops::cuda {

/// What timing found for one product.
struct TunedGemm {
  int candidate = 0;    ///< which of cuBLASLt's choices is the fastest; 0 is its first
  double best_us = 0;   ///< of that one
  double first_us = 0;  ///< of the first
};

using GemmTable = std::map<GemmProblem, TunedGemm>;

/// The table as JSON, with the kind of GPU and the version of cuBLASLt that it holds for: the order
/// of cuBLASLt's choices is a matter of these. Throws an I/O failure.
void write_table(const std::filesystem::path& file, const GemmTable& table);
/// Throws a user error where the file is none, or is another GPU's or another cuBLASLt's.
GemmTable read_table(const std::filesystem::path& file);

}  // namespace llamesh::ops::cuda
