#pragma once

#include <cstdint>
#include <string>

namespace llamesh::ops {

/// Names the implementations that attention() and attention_backward() have used on this process's
/// GPU so far, e.g. "cuDNN 9.19.0, backward built-in kernels by wgmma": others give other bits.
/// Empty before the first call, and on CPUs.
std::string used_attention();

/// Returns the scratch in bytes that attention may allocate on this process's GPU beyond what plans
/// count.
std::int64_t max_attention_scratch();

}  // namespace llamesh::ops
