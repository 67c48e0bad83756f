#pragma once

#include <filesystem>
#include <string>

namespace llamesh::ops {

// On a GPU cuBLASLt has several algorithms for a product and ranks them by a model of the chip. A
// product takes its first choice, or what a table says that timing found to be faster. The choice
// belongs to the run's bits: two runs with the same table and target, or without, get the same.

/// Products of new shapes are planned for so many of the GPU's multiprocessors, which leaves the
/// others to kernels of other streams (CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET); 0: for all of them.
/// Does nothing on the CPU.
void use_gemm_sm_count_target(int count);

/// How many of the library's choices for a shape can be asked for: 1 on the CPU.
int gemm_candidates();
/// For benchmarks: products that are in no table take the library's `candidate`th choice from now
/// on, or the last that it has. 0 is its first.
void use_gemm_candidate(int candidate);

/// From now on each product of a new shape that overwrites its result is first timed with every
/// candidate, and takes the fastest. Results are those of that algorithm: timing leaves no trace.
/// On the CPU there is nothing to choose.
void tune_gemms();
/// Writes what tune_gemms() found to `file`, JSON, and says in one line how much that saves. Throws
/// an I/O failure.
std::string write_gemm_table(const std::filesystem::path& file);
/// Products take the algorithms that `file` of write_gemm_table() names, those not in it
/// cuBLASLt's first choice. Throws a user error where the file cannot be read, or was made on
/// another kind of GPU or with another cuBLASLt. Does nothing on the CPU.
void use_gemm_table(const std::filesystem::path& file);

}  // namespace llamesh::ops
