#include "app/commands/commands.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>

#include "app/loaded_model.hpp"
#include "app/program.hpp"
#include "device/buffer.hpp"
#include "model/decoder.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::app {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void print_now(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::string prompt_of(const GenerateArguments& arguments) {
  if (arguments.prompt_file.empty()) return arguments.prompt;
  validate(arguments.prompt.empty(), "--prompt and --prompt-file are both given; keep one");
  std::ifstream in(arguments.prompt_file, std::ios::binary);
  validate(in.good(), "cannot read '{}'", arguments.prompt_file);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

int generate(const GenerateArguments& arguments) {
  constexpr std::int64_t most_tokens = std::numeric_limits<std::int32_t>::max();
  validate(arguments.max_tokens >= 1 && arguments.max_tokens <= most_tokens,
           "--max-tokens is {}; give 1 to {}", arguments.max_tokens, most_tokens);
  const auto prompt = prompt_of(arguments);
  use_single_device(arguments.device);
  device::advise_on_memory(
      "the weights take half of it with --dtype bf16, the rest grows with the prompt and "
      "--max-tokens");
  const DType dtype = dtype_of_argument(arguments.dtype);
  if (dtype == DType::bf16) use_faster_bf16_products();
  model::TokenSampler sampler(arguments.sampling);
  LoadedModel model(model_path(arguments.model), dtype);
  const auto tokenizer = tokenizer::open_tokenizer(tokenizer_for(model, arguments.tokenizer));
  validate(
      tokenizer->vocab_size() <= model.config.vocab_size,
      "the tokenizer has {} ids and the model {}: they do not belong together; name the model's "
      "own with --tokenizer",
      tokenizer->vocab_size(), model.config.vocab_size);

  auto tokens = tokenizer->prefix_ids();
  const auto encoded = tokenizer->encode(prompt);
  tokens.insert(tokens.end(), encoded.begin(), encoded.end());
  validate(!tokens.empty(), "the prompt is empty, and the tokenizer has no sign for a beginning");
  model::Decoder decoder(model.config, model.table, model.weights,
                         std::ssize(tokens) + arguments.max_tokens, dtype);
  print_now(prompt);
  tokenizer::TextStream text(*tokenizer);
  // The prompt is printed as given, not as decoded, but decoding of what follows starts within it.
  for (const auto id : encoded) text.push(id);
  const auto start = Clock::now();
  // Ids beyond the tokenizer's are padding of the vocabulary.
  const auto known = static_cast<std::size_t>(tokenizer->vocab_size());
  auto logits = decoder.feed(tokens);
  const double prompt_seconds = seconds_since(start);
  std::int64_t made = 0;
  while (made < arguments.max_tokens) {
    const auto id = sampler.choose(logits.first(known));
    ++made;
    if (id == tokenizer->eos()) break;
    print_now(text.push(id));
    if (made < arguments.max_tokens) logits = decoder.feed({&id, 1});
  }
  print_now(text.finish() + "\n");
  // The first token is from the prompt's forward pass.
  const double seconds = seconds_since(start) - prompt_seconds;
  const auto passes = static_cast<double>(made - 1);
  if (made > 1)
    fmt::print(stderr,
               "{} prompt tokens in {:.2f} s, then {:.1f} tokens/s: {:.1f} GB/s of weights\n",
               tokens.size(), prompt_seconds, passes / seconds,
               passes * static_cast<double>(model.weights.bytes()) / seconds * 1e-9);
  return 0;
}

}  // namespace llamesh::app
