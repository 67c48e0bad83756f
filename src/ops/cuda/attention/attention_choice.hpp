#pragma once

#include <compare>

#include "ops/cuda/kernels.hpp"

namespace LLAMESH_OPS_CUDA {

/// Which attention a GPU takes. `cudnn` asks for it: without cuDNN the program ends instead of
/// going on with the built-in kernels. What cuDNN does not do (fp32, documents) is theirs all the
/// same. `mma` is `builtin` without the kernels that only Hopper has.
enum class AttentionChoice { automatic, cudnn, builtin, mma };

enum class AttentionPass { forward, backward };
/// That of a call with these gradients; in the forward pass there are none.
inline AttentionPass pass_of(const AttentionGradients& gradients) {
  return gradients.dq ? AttentionPass::backward : AttentionPass::forward;
}

/// One of them for each pass; either backward pass may follow either forward pass.
struct AttentionChoices {
  AttentionChoice forward, backward;
  auto operator<=>(const AttentionChoices&) const = default;
};
/// "cudnn", "builtin" or "mma" for both passes, two of them as in "cudnn/builtin" for the forward
/// and the backward pass, or null for automatic; anything else is a user error.
AttentionChoices attention_choices(const char* text);
/// What the environment variable LLAMESH_ATTENTION says, read once.
AttentionChoice attention_choice(AttentionPass pass);

}  // namespace LLAMESH_OPS_CUDA
