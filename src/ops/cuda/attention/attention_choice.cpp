#include "ops/cuda/attention/attention_choice.hpp"

#include <cstdlib>
#include <optional>
#include <string_view>

namespace LLAMESH_OPS_CUDA {
namespace {

std::optional<AttentionChoice> choice_of(std::string_view name) {
  if (name == "cudnn") return AttentionChoice::cudnn;
  if (name == "builtin") return AttentionChoice::builtin;
  if (name == "mma") return AttentionChoice::mma;
  return {};
}

}  // namespace

AttentionChoices attention_choices(const char* text) {
  if (text == nullptr) return {AttentionChoice::automatic, AttentionChoice::automatic};
  const std::string_view names(text);
  const auto slash = names.find('/');
  const auto forward = choice_of(names.substr(0, slash));
  const auto backward =
      slash == std::string_view::npos ? forward : choice_of(names.substr(slash + 1));
  validate(forward && backward,
           "LLAMESH_ATTENTION={} is none of cudnn, builtin and mma, nor two of them as in "
           "cudnn/builtin; unset it for cuDNN where it can be had",
           names);
  return {*forward, *backward};
}

bool tries_cudnn(AttentionPass pass, AttentionChoice choice, bool by_wgmma) {
  if (choice == AttentionChoice::automatic) return pass == AttentionPass::forward || !by_wgmma;
  return choice == AttentionChoice::cudnn;
}

AttentionChoice attention_choice(AttentionPass pass) {
  static const auto choices = attention_choices(std::getenv("LLAMESH_ATTENTION"));
  return pass == AttentionPass::forward ? choices.forward : choices.backward;
}

}  // namespace LLAMESH_OPS_CUDA
