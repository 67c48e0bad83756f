#pragma once

namespace llamesh::ops {

/// Sets whether CPU products have the same bits with any number of threads (train.reproducible:
/// mesh). oneDNN alone chooses by that number how it divides a product, sometimes along its inner
/// dimension; here each thread takes whole blocks, which depend on the shapes alone. Other CPU
/// kernels always have the same bits.
void use_thread_independent_products(bool use);
bool thread_independent_products();

}  // namespace llamesh::ops
