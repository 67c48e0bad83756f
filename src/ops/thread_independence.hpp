#pragma once

namespace llamesh::ops {

/// Sets whether products on CPUs have the same bits with any number of threads (train.reproducible:
/// mesh). oneDNN alone chooses by the number of threads how it divides a product, sometimes its
/// inner dimension; here each thread takes whole blocks of the result, which depend on the shapes
/// alone. Other CPU kernels always have the same bits.
void use_thread_independent_products(bool use);
bool thread_independent_products();

}  // namespace llamesh::ops
