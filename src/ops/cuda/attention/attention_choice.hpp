#pragma once

#include "ops/cuda/kernels.hpp"

namespace LLAMESH_OPS_CUDA {

/// Which attention a GPU takes. `cudnn` asks for it: without cuDNN the program ends instead of
/// going on with the built-in kernels. What cuDNN does not do (fp32, documents) is theirs all the
/// same. `mma` is `builtin` without the kernels that only Hopper has.
enum class AttentionChoice { automatic, cudnn, builtin, mma };

/// "cudnn", "builtin", "mma", or null for automatic; anything else is a user error.
AttentionChoice attention_choice(const char* text);
/// What the environment variable LLAMESH_ATTENTION says, read once.
AttentionChoice attention_choice();

}  // namespace LLAMESH_OPS_CUDA
