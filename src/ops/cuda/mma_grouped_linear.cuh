#pragma once

#include "ops/cuda/grouped_product.cuh"

/// The grouped products on tensor cores (mma_grouped_linear.cu). Rows and columns of all matrices
/// are multiples of 8 elements, rows at multiples of 16 bytes.
namespace LLAMESH_OPS_CUDA {

/// Ragged::rows, with a by rows, and b by rows or by columns (`b_transposed`).
void mma_grouped_product(Stream& stream, const GroupedProduct<bf16, bf16>& product,
                         bool b_transposed);
/// Ragged::depth, with a by columns and b by rows.
void mma_grouped_product(Stream& stream, const GroupedProduct<bf16, bf16>& product);
void mma_grouped_product(Stream& stream, const GroupedProduct<float, bf16>& product);

}  // namespace LLAMESH_OPS_CUDA
