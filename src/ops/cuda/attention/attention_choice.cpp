#include "ops/cuda/attention/attention_choice.hpp"

#include <cstdlib>
#include <string_view>

namespace LLAMESH_OPS_CUDA {

AttentionChoice attention_choice(const char* text) {
  if (text == nullptr) return AttentionChoice::automatic;
  const std::string_view name(text);
  if (name == "cudnn") return AttentionChoice::cudnn;
  if (name == "builtin") return AttentionChoice::builtin;
  validate(
      name == "mma",
      "LLAMESH_ATTENTION={} is none of cudnn, builtin and mma; unset it for cuDNN where it can be "
      "had",
      name);
  return AttentionChoice::mma;
}

AttentionChoice attention_choice() {
  static const auto choice = attention_choice(std::getenv("LLAMESH_ATTENTION"));
  return choice;
}

}  // namespace LLAMESH_OPS_CUDA
