#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "app/commands/chat.hpp"
#include "app/commands/commands.hpp"
#include "app/commands/generation.hpp"
#include "app/models/prompt_tokens.hpp"
#include "core/file.hpp"

namespace llamesh::app {
namespace {

struct GenerateArguments : GenerationArguments {
  std::string prompt;
  std::string prompt_file;
  bool chat = false;   ///< the prompt is a user's message; without one, a conversation
  std::string input;   ///< records with prompts; empty: none
  std::string output;  ///< for them, with their answers
};

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

/// Returns the number of tokens to add to a prompt: as asked, or else 128, as far as the model has
/// positions.
std::int64_t tokens_to_add(const GenerateArguments& arguments, const model::ModelConfig& config,
                           std::int64_t prompt) {
  const auto room = config.within_positions(prompt + default_new_tokens) - prompt;
  const auto count = arguments.max_tokens.value_or(std::max<std::int64_t>(room, 1));
  model::check_positions(
      config, prompt + count,
      fmt::format("lower --max-tokens ({}), or shorten the prompt ({} tokens)", count, prompt));
  return count;
}

void print_rates(const Generator& generator, const Ranks& ranks, std::int64_t prompt_tokens,
                 const GeneratedText& made) {
  // The first token comes from the prompt's forward pass.
  const auto passes = static_cast<double>(made.tokens - 1);
  const auto seconds = made.seconds - made.prompt_seconds;
  const auto bytes = static_cast<double>(generator.model().weights.bytes()) * ranks.count();
  fmt::print(stderr, "{} prompt tokens in {:.2f} s, then {:.1f} tokens/s: {:.1f} GB/s of weights\n",
             prompt_tokens, made.prompt_seconds, passes / seconds, passes * bytes / seconds * 1e-9);
}

/// Continues a prompt, token by token, on the terminal. Stops after the end-of-text token.
void continue_prompt(const Ranks& ranks, Generator& generator, const GenerateArguments& arguments,
                     const std::string& text) {
  PromptTokens prompt;
  std::int64_t count = 0;
  ranks.agree([&] {
    prompt = encode_prompt(generator.tokenizer(), generator.model().data, text);
    validate(
        !prompt.ids.empty(),
        "the prompt is empty, and the tokenizer has no beginning-of-text token; give a prompt");
    count = tokens_to_add(arguments, generator.model().config, std::ssize(prompt.ids));
  });
  ranks.run([&] {
    generator.make_room(std::ssize(prompt.ids) + count);
    const auto print = [&](const std::string& piece) {
      if (ranks.prints()) print_now(piece);
    };
    if (ranks.prints() && !prompt.note.empty()) fmt::print(stderr, "{}\n", prompt.note);
    print(text);
    // The prompt is printed as given, not as decoded, but decoding starts within it.
    const auto made = generator.continue_from(prompt.ids, prompt.own_ids(), count, print);
    print("\n");
    if (made.tokens > 1 && ranks.prints())
      print_rates(generator, ranks, std::ssize(prompt.ids), made);
  });
}

/// A single process runs without MPI; several ranks hold the model together.
int generate(const GenerateArguments& arguments) {
  const Ranks ranks;
  ranks.agree([&] {
    validate(arguments.input.empty() == arguments.output.empty(),
             "--input and --output belong together: one has prompts, the other gets the answers");
    validate(arguments.input.empty() || (arguments.prompt.empty() && arguments.prompt_file.empty()),
             "--prompt and --input are both given; keep one");
    validate(arguments.chat || !arguments.input.empty() ||
                 (!arguments.context && arguments.system.empty()),
             "--context and --system are for conversations; add --chat");
  });
  const auto prompt = ranks.on_rank_0([&] { return prompt_of(arguments); });
  Generator generator(ranks, arguments);
  if (!arguments.input.empty()) {
    answer_records(ranks, generator, arguments,
                   {arguments.input, arguments.output, arguments.chat});
  } else if (arguments.chat) {
    return chat(ranks, generator, arguments, prompt);
  } else {
    continue_prompt(ranks, generator, arguments, prompt);
  }
  return 0;
}

int hold_a_conversation(const GenerationArguments& arguments) {
  const Ranks ranks;
  Generator generator(ranks, arguments);
  return chat(ranks, generator, arguments, "");
}

void add_max_tokens(CLI::App& command, GenerationArguments& to, const char* help) {
  command.add_option("--max-tokens", to.max_tokens, help);
}

}  // namespace

void declare_generate(CLI::App& parser, Run& chosen) {
  auto& command =
      add_command(parser, "generate", "Continue a prompt with a trained model (also under mpirun)",
                  {"llamesh generate runs/tiny --prompt \"In the beginning\"",
                   "llamesh generate hf:FOLDER --chat --prompt \"What is the capital of France?\"",
                   "llamesh generate runs/chat --input prompts.jsonl --output answers.jsonl",
                   "mpirun -n 4 llamesh generate hf:FOLDER --prompt-file FILE --temperature 0.7"});
  auto& [to] = runs(command, chosen, generate);
  add_generation(command, to);
  command.add_option("--prompt", to.prompt, "Text to continue");
  command.add_option("--prompt-file", to.prompt_file,
                     "Read the prompt from a file; - is standard input");
  add_max_tokens(command, to,
                 "Maximum number of new tokens (default: 128, or as many as the model has "
                 "positions for; with --chat up to --context)");
  command.add_flag("--chat", to.chat,
                   "The prompt is a message in the model's chat template; without a prompt, as "
                   "llamesh chat");
  command.add_option("--input", to.input,
                     "JSONL with a prompt or messages in each record; an interrupted command goes "
                     "on where it stopped");
  command.add_option("--output", to.output, "The records with an answer each");
}

void declare_chat(CLI::App& parser, Run& chosen) {
  auto& command = add_command(parser, "chat",
                              "Talk with a trained model in its chat template (also under mpirun)",
                              {"llamesh chat runs/chat",
                               "llamesh chat hf:FOLDER --adapter ADAPTER --system \"Be brief.\""});
  auto& [to] = runs(command, chosen, hold_a_conversation);
  add_generation(command, to);
  add_max_tokens(command, to, "Maximum number of tokens of an answer (default: up to --context)");
}

}  // namespace llamesh::app
