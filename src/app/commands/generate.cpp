#include "app/commands/commands.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>

#include "app/commands/model_options.hpp"
#include "app/models/end_tokens.hpp"
#include "app/models/loaded_model.hpp"
#include "app/models/model_mesh.hpp"
#include "app/models/prompt_tokens.hpp"
#include "app/program/program.hpp"
#include "comm/mpi/launch.hpp"
#include "comm/mpi/session.hpp"
#include "core/clock.hpp"
#include "core/file.hpp"
#include "core/log.hpp"
#include "device/buffer.hpp"
#include "model/decoder.hpp"
#include "model/sampling.hpp"
#include "tokenizer/tokenizer.hpp"
#include "train/engine/kernel_choice.hpp"
#include "train/setup/setup.hpp"

namespace llamesh::app {
namespace {

struct GenerateArguments : ModelArguments {
  std::string prompt;
  std::string prompt_file;
  std::optional<std::int64_t> max_tokens;  ///< empty: 128, or those that fit into the positions
  model::SamplingOptions sampling;
};

void print_now(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::string prompt_of(const GenerateArguments& arguments) {
  if (arguments.prompt_file.empty()) return arguments.prompt;
  validate(arguments.prompt.empty(), "--prompt and --prompt-file are both given; keep one");
  if (arguments.prompt_file == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::error_code ignored;
  validate(!std::filesystem::is_directory(arguments.prompt_file, ignored),
           "--prompt-file '{}' is a folder; name a file", arguments.prompt_file);
  std::ifstream in(arguments.prompt_file, std::ios::binary);
  validate(in.good(), "cannot read '{}'{}", arguments.prompt_file,
           did_you_mean_path(arguments.prompt_file));
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Returns the number of ranks started together.
int started_ranks() {
  const auto launch = comm::detect_launch(std::getenv);
  return launch.is_shell_in_allocation() ? 1 : std::max(1, launch.ranks);
}

/// This process alone, without MPI, or all ranks that were started.
class Ranks {
 public:
  explicit Ranks(int count) : count_(count) {
    if (count == 1) return;
    session_.emplace();
    setup_logging();
  }

  int count() const { return count_; }
  bool prints() const { return !session_ || world().rank() == 0; }
  void agree(const std::function<void()>& phase) const {
    session_ ? comm::agree(world(), phase) : phase();
  }
  std::string on_rank_0(const std::function<std::string()>& phase) const {
    return session_ ? comm::on_rank_0(world(), phase) : phase();
  }
  /// Runs work in which ranks may be in collectives.
  void run(const std::function<void()>& work) const { session_ ? run_or_abort(work) : work(); }

  void choose_device(const std::string& choice) const {
    session_ ? use_device(world(), choice) : use_single_device(choice);
  }
  void choose_threads_and_products(DType dtype) const {
    if (session_) {
      train::set_threads(0, world());
      train::choose_bf16_products(world(), dtype);
    } else if (dtype == DType::bf16) {
      use_faster_bf16_products();
    }
  }
  ModelMesh mesh() const { return session_ ? ModelMesh(world(), count_) : ModelMesh(); }

 private:
  const comm::Communicator& world() const { return session_->world(); }

  int count_;
  std::optional<comm::MpiSession> session_;
};

void check(const GenerateArguments& arguments, int ranks) {
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

/// Model, prompt and limits of a generation.
struct Start {
  std::unique_ptr<LoadedModel> model;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  PromptTokens prompt;
  std::vector<std::int32_t> ends;  ///< ids that end the text
  std::int64_t max_tokens = 0;     ///< to add
  std::int64_t positions() const { return std::ssize(prompt.ids) + max_tokens; }
};

/// Sets the number of tokens to add: as asked, or else 128, as far as the model has positions.
void set_max_tokens(const GenerateArguments& arguments, const model::ModelConfig& config,
                    Start& start) {
  constexpr std::int64_t by_default = 128;
  const std::int64_t prompt = std::ssize(start.prompt.ids);
  const auto room = config.within_positions(prompt + by_default) - prompt;
  start.max_tokens = arguments.max_tokens.value_or(std::max<std::int64_t>(room, 1));
  model::check_positions(config, start.positions(),
                         fmt::format("lower --max-tokens ({}), or shorten the prompt ({} tokens)",
                                     start.max_tokens, prompt));
}

Start load(const GenerateArguments& arguments, const std::string& path, const std::string& prompt,
           DType dtype, const ModelMesh& mesh) {
  Start start;
  start.model =
      std::make_unique<LoadedModel>(path, dtype, mesh.dims(), mesh.rank(), arguments.adapter);
  const auto& model = *start.model;
  start.tokenizer = tokenizer::open_tokenizer(tokenizer_for(model, arguments.tokenizer));
  validate(start.tokenizer->vocab_size() <= model.config.vocab_size,
           "the tokenizer has {} ids, but the model's vocabulary only {}; name the model's own "
           "tokenizer with --tokenizer",
           start.tokenizer->vocab_size(), model.config.vocab_size);
  start.ends = end_tokens(*start.tokenizer, model.data, model.hf);
  start.prompt = encode_prompt(*start.tokenizer, model.data, prompt);
  validate(!start.prompt.ids.empty(),
           "the prompt is empty, and the tokenizer has no beginning-of-text token; give a prompt");
  set_max_tokens(arguments, model.config, start);
  return start;
}

void print_rates(std::int64_t prompt_tokens, double prompt_seconds, std::int64_t passes,
                 double seconds, double bytes) {
  const auto count = static_cast<double>(passes);
  fmt::print(stderr, "{} prompt tokens in {:.2f} s, then {:.1f} tokens/s: {:.1f} GB/s of weights\n",
             prompt_tokens, prompt_seconds, count / seconds, count * bytes / seconds * 1e-9);
}

/// Throws unless there is a likeliest token. All ranks have the same logits.
void check_logits(const Ranks& ranks, std::span<const float> logits, const std::string& path) {
  const auto is_usable = [](float x) { return x < std::numeric_limits<float>::infinity(); };
  if (std::ranges::all_of(logits, is_usable)) return;
  std::fflush(stdout);  // the error may end the job at once
  ranks.agree([&] {
    fail(ExitCode::no_progress, "the logits of {} are not finite; {}", path,
         advice_on_nonfinite_weights(path));
  });
}

/// Generates the same text on every rank, from the same logits; one rank prints it. `path` is the
/// model's, for messages.
void write_text(const Ranks& ranks, model::Decoder& decoder, const Start& from,
                model::TokenSampler& sampler, const std::string& path) {
  const auto& tokenizer = *from.tokenizer;
  const auto print = [&](const std::string& text) {
    if (ranks.prints()) print_now(text);
  };
  tokenizer::TextStream text(tokenizer);
  // The prompt is printed as given, not as decoded, but decoding starts within it.
  for (const auto id : from.prompt.own_ids()) text.push(id);
  const auto start = std::chrono::steady_clock::now();
  // Ids beyond the tokenizer's are vocabulary padding.
  const auto known = static_cast<std::size_t>(tokenizer.vocab_size());
  auto logits = decoder.feed(from.prompt.ids);
  const double prompt_seconds = seconds_since(start);
  std::int64_t made = 0;
  while (made < from.max_tokens) {
    check_logits(ranks, logits, path);
    const auto id = sampler.choose(logits.first(known));
    ++made;
    if (std::ranges::find(from.ends, id) != from.ends.end()) break;
    print(text.push(id));
    if (made < from.max_tokens) logits = decoder.feed({&id, 1});
  }
  print(text.finish() + "\n");
  // The first token comes from the prompt's forward pass.
  if (made > 1 && ranks.prints())
    print_rates(std::ssize(from.prompt.ids), prompt_seconds, made - 1,
                seconds_since(start) - prompt_seconds,
                static_cast<double>(from.model->weights.bytes()) * ranks.count());
}

/// Continues a prompt, token by token, on the terminal. Stops after the end-of-text token. A single
/// process runs without MPI; several ranks hold the model together.
int generate(const GenerateArguments& arguments) {
  const Ranks ranks(started_ranks());
  ranks.agree([&] { check(arguments, ranks.count()); });
  const auto prompt = ranks.on_rank_0([&] { return prompt_of(arguments); });
  ranks.choose_device(arguments.device);
  device::advise_on_memory(
      "the weights take half of it with --dtype bf16, or are divided among N ranks by mpirun -n N; "
      "the rest grows with the prompt and --max-tokens");
  DType dtype = DType::f32;
  std::optional<model::TokenSampler> sampler;
  ranks.agree([&] {
    dtype = dtype_of_argument(arguments.dtype);
    sampler.emplace(arguments.sampling);
  });
  ranks.choose_threads_and_products(dtype);
  auto mesh = ranks.mesh();
  const auto path = ranks.on_rank_0([&] { return model_path(arguments.model); });
  Start start;
  ranks.agree([&] { start = load(arguments, path, prompt, dtype, mesh); });
  ranks.run([&] {
    const auto& model = *start.model;
    const auto tensor =
        mesh.tensor_parallel(model.config, sharding::ResidualLayout::whole,
                             std::min(start.positions(), model::Decoder::largest_chunk), dtype);
    model::Decoder decoder(model.config, model.shard.table, start.model->weights, start.positions(),
                           dtype, *tensor);
    if (ranks.prints() && !start.prompt.note.empty()) fmt::print(stderr, "{}\n", start.prompt.note);
    if (ranks.prints()) print_now(prompt);
    write_text(ranks, decoder, start, *sampler, path);
  });
  return 0;
}

}  // namespace

void declare_generate(CLI::App& parser, Run& chosen) {
  auto& command =
      add_command(parser, "generate", "Continue a prompt with a trained model (also under mpirun)",
                  {"llamesh generate runs/tiny --prompt \"In the beginning\"",
                   "mpirun -n 4 llamesh generate hf:FOLDER --prompt-file FILE --temperature 0.7"});
  auto& [to] = runs(command, chosen, generate);
  add_model(command, to, "Ranks that share each matrix; all that are started (the default)");
  command.add_option("--prompt", to.prompt, "Text to continue");
  command.add_option("--prompt-file", to.prompt_file,
                     "Read the prompt from a file; - is standard input");
  command.add_option("--max-tokens", to.max_tokens,
                     "Maximum number of new tokens (default: 128, or as many as the model has "
                     "positions for)");
  command.add_option("--temperature", to.sampling.temperature,
                     "0 (the default): always the most likely token");
  command.add_option("--top-k", to.sampling.top_k, "Sample from the k most likely tokens only");
  command.add_option("--top-p", to.sampling.top_p,
                     "Sample from the most likely tokens that together reach probability p");
  command.add_option("--seed", to.sampling.seed, "Random seed of the sampling (default 0)");
}

}  // namespace llamesh::app
