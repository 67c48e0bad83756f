#include "ops/cuda/attention_choice.hpp"

#include <cstdlib>
#include <string_view>

namespace LLAMESH_OPS_CUDA {

AttentionChoice attention_choice(const char* text) {
  if (text == nullptr) return AttentionChoice::automatic;
  const std::string_view name(text);
  validate(name == "cudnn" || name == "own",
           "LLAMESH_ATTENTION={} is neither cudnn nor own; unset it for cuDNN where it can be had",
           name);
  return name == "cudnn" ? AttentionChoice::cudnn : AttentionChoice::own;
}

AttentionChoice attention_choice() {
  static const auto choice = attention_choice(std::getenv("LLAMESH_ATTENTION"));
  return choice;
}

}  // namespace LLAMESH_OPS_CUDA
