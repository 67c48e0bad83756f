#pragma once

#include <filesystem>
#include <string>

namespace llamesh::ops {

// On a GPU, cuBLASLt has several algorithms for a product and ranks them by a model of the chip. A
// product uses the first choice, or the one that a tuning table names as fastest. The choice
// affects the last bits of a run: two runs agree if they use the same table (or none) and the same
// SM target.

/// Plans products with new shapes for `count` multiprocessors, which leaves the others to kernels
/// on other streams (CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET). 0 means all. Does nothing on the CPU.
void use_gemm_sm_count_target(int count);

/// Returns true if the device multiplies FP8 matrices itself. Otherwise, and from
/// emulate_fp8(true) on, linear_fp8() multiplies the same numbers in bf16.
bool multiplies_fp8();
void emulate_fp8(bool emulate);

/// Returns how many library choices can be requested per shape: 1 on the CPU.
int gemm_candidates();
/// For benchmarks: from now on, products that are in no table use the library's `candidate`th
/// choice, or the last one if there are fewer. 0 is the first.
void use_gemm_candidate(int candidate);

/// From now on, times every candidate for each new shape that overwrites its result, and uses the
/// fastest. Tuning does not change the result, which comes from the chosen algorithm. Does nothing
/// on the CPU.
void tune_gemms();
/// Writes the choices that tune_gemms() made to `file` as JSON and returns one line on the time
/// saved. Throws on an I/O failure.
std::string write_gemm_table(const std::filesystem::path& file);
/// Uses the algorithms named in `file`, written by write_gemm_table(); shapes that it does not list
/// get cuBLASLt's first choice. Throws a user error if the file cannot be read, or was made on
/// another GPU model or with another cuBLASLt. Does nothing on the CPU.
void use_gemm_table(const std::filesystem::path& file);

}  // namespace llamesh::ops
