#include "app/commands/generation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "app/models/end_tokens.hpp"
#include "app/program/program.hpp"
#include "comm/mpi/launch.hpp"
#include "core/clock.hpp"
#include "core/log.hpp"
#include "device/buffer.hpp"
#include "train/engine/kernel_choice.hpp"
#include "train/setup/setup.hpp"

namespace llamesh::app {
namespace {

/// Returns the number of ranks started together.
int started_ranks() {
  const auto launch = comm::detect_launch(std::getenv);
  return launch.is_shell_in_allocation() ? 1 : std::max(1, launch.ranks);
}

void check(const GenerationArguments& arguments, int ranks) {
  constexpr std::int64_t limit = std::numeric_limits<std::int32_t>::max();
  const auto max_tokens = arguments.max_tokens.value_or(1);
  validate(max_tokens >= 1 && max_tokens <= limit, "--max-tokens is {}; allowed: 1 to {}",
           max_tokens, limit);
  const auto asked = arguments.tensor_parallel_size;
  validate(asked == 0 || asked == ranks,
           "--tensor-parallel-size is {} but {} {} started, and all of them share the model; "
           "start {}, e.g. with mpirun -n {}",
           asked, ranks, ranks == 1 ? "rank was" : "ranks were", asked, asked);
}

}  // namespace

void add_generation(CLI::App& command, GenerationArguments& to) {
  add_model(command, to, "Ranks that share each matrix; all that are started (the default)");
  command.add_option("--temperature", to.sampling.temperature,
                     "0 (the default): always the most likely token");
  command.add_option("--top-k", to.sampling.top_k, "Sample from the k most likely tokens only");
  command.add_option("--top-p", to.sampling.top_p,
                     "Sample from the most likely tokens that together reach probability p");
  command.add_option("--seed", to.sampling.seed, "Random seed of the sampling (default 0)");
  command
      .add_option("--context", to.context,
                  "Tokens that a conversation may have (default: 4096, or as many as the model has "
                  "positions for)")
      ->check(CLI::Range(2, 1 << 30));
  command.add_option("--system", to.system, "System message at the start of a conversation");
}

std::int64_t room_of(const GenerationArguments& arguments, const model::ModelConfig& config) {
  constexpr std::int64_t by_default = 4096;
  if (!arguments.context) return config.within_positions(by_default);
  model::check_positions(config, *arguments.context, "lower --context");
  return *arguments.context;
}

Ranks::Ranks() : count_(started_ranks()) {
  if (count_ == 1) return;
  session_.emplace();
  setup_logging();
}

void Ranks::agree(const std::function<void()>& phase) const {
  session_ ? comm::agree(world(), phase) : phase();
}

std::string Ranks::on_rank_0(const std::function<std::string()>& phase) const {
  return session_ ? comm::on_rank_0(world(), phase) : phase();
}

std::vector<std::int32_t> Ranks::ids_on_rank_0(
    const std::function<std::vector<std::int32_t>()>& phase) const {
  const auto bytes = on_rank_0([&] {
    const auto ids = phase();
    return std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(ids[0]));
  });
  std::vector<std::int32_t> ids(bytes.size() / sizeof(std::int32_t));
  std::memcpy(ids.data(), bytes.data(), bytes.size());
  return ids;
}

void Ranks::run(const std::function<void()>& work) const {
  session_ ? run_or_abort(work) : work();
}

void Ranks::choose_device(const std::string& choice) const {
  session_ ? use_device(world(), choice) : use_single_device(choice);
}

void Ranks::choose_threads_and_products(DType dtype) const {
  if (session_) {
    train::set_threads(0, world());
    train::choose_bf16_products(world(), dtype);
  } else if (dtype == DType::bf16) {
    use_faster_bf16_products();
  }
}

Generator::Generator(const Ranks& ranks, const GenerationArguments& arguments)
    : ranks_(ranks), sampling_(arguments.sampling) {
  ranks.agree([&] { check(arguments, ranks.count()); });
  ranks.choose_device(arguments.device);
  device::advise_on_memory(
      "the weights take half of it with --dtype bf16, or are divided among N ranks by mpirun -n N; "
      "the rest grows with the prompt and --max-tokens");
  ranks.agree([&] {
    dtype_ = dtype_of_argument(arguments.dtype);
    sampler_.emplace(sampling_);
  });
  ranks.choose_threads_and_products(dtype_);
  mesh_ = ranks.mesh();
  path_ = ranks.on_rank_0([&] { return model_path(arguments.model); });
  ranks.agree([&] { load(arguments); });
}

void Generator::load(const GenerationArguments& arguments) {
  model_ =
      std::make_unique<LoadedModel>(path_, dtype_, mesh_.dims(), mesh_.rank(), arguments.adapter);
  data_ = model_->data;
  data_.tokenizer = tokenizer_for(*model_, arguments.tokenizer);
  tokenizer_ = tokenizer::open_tokenizer(data_.tokenizer);
  validate(tokenizer_->vocab_size() <= model_->config.vocab_size,
           "the tokenizer has {} ids, but the model's vocabulary only {}; name the model's own "
           "tokenizer with --tokenizer",
           tokenizer_->vocab_size(), model_->config.vocab_size);
  ends_ = end_tokens(*tokenizer_, model_->data, model_->hf);
}

void Generator::make_room(std::int64_t positions) {
  const auto& config = model_->config;
  tensor_ = mesh_.tensor_parallel(config, sharding::ResidualLayout::whole,
                                  std::min(positions, model::Decoder::largest_chunk), dtype_);
  decoder_ = std::make_unique<model::Decoder>(config, model_->shard.table, model_->weights,
                                              positions, dtype_, *tensor_);
  fed_.clear();
}

void Generator::seed(std::uint64_t seed) {
  sampling_.seed = seed;
  sampler_.emplace(sampling_);
}

/// Returns the logits behind the prompt. The decoder keeps what it has read already.
std::span<const float> Generator::read(std::span<const std::int32_t> prompt) {
  const auto differs = std::ranges::mismatch(fed_, prompt).in1 - fed_.begin();
  const auto known = std::min<std::ptrdiff_t>(differs, std::ssize(prompt) - 1);
  decoder_->rewind(known);
  fed_.assign(prompt.begin(), prompt.end());
  return decoder_->feed(prompt.subspan(static_cast<std::size_t>(known)));
}

/// Throws unless there is a likeliest token. All ranks have the same logits.
void Generator::check_logits(std::span<const float> logits) const {
  const auto is_usable = [](float x) { return x < std::numeric_limits<float>::infinity(); };
  if (std::ranges::all_of(logits, is_usable)) return;
  std::fflush(stdout);  // the error may end the job at once
  ranks_.agree([&] {
    fail(ExitCode::no_progress, "the logits of {} are not finite; {}", path_,
         advice_on_nonfinite_weights(path_));
  });
}

GeneratedText Generator::continue_from(std::span<const std::int32_t> prompt,
                                       std::span<const std::int32_t> visible,
                                       std::int64_t max_tokens,
                                       const std::function<void(const std::string&)>& text,
                                       const std::function<bool()>& stop) {
  GeneratedText made;
  tokenizer::TextStream stream(*tokenizer_);
  for (const auto id : visible) stream.push(id);
  const auto add = [&](const std::string& piece) {
    made.text += piece;
    text(piece);
  };
  const auto start = std::chrono::steady_clock::now();
  // Ids beyond the tokenizer's are vocabulary padding.
  const auto known = static_cast<std::size_t>(tokenizer_->vocab_size());
  auto logits = read(prompt);
  made.prompt_seconds = seconds_since(start);
  while (made.tokens < max_tokens && !stop()) {
    check_logits(logits);
    const auto id = sampler_->choose(logits.first(known));
    ++made.tokens;
    if (std::ranges::find(ends_, id) != ends_.end()) break;
    add(stream.push(id));
    if (made.tokens == max_tokens) break;
    logits = decoder_->feed({&id, 1});
    fed_.push_back(id);
  }
  add(stream.finish());
  made.seconds = seconds_since(start);
  return made;
}

void print_now(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace llamesh::app
