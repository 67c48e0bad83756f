#include "app/commands/chat.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <optional>

#include "core/process.hpp"
#include "data/chat_prompt.hpp"
#include "data/chat_template.hpp"

namespace llamesh::app {
namespace {

/// A conversation, and the model that answers.
class Conversation {
 public:
  Conversation(const Ranks& ranks, Generator& generator, const GenerationArguments& arguments)
      : ranks_(ranks), generator_(generator), arguments_(arguments) {
    ranks.agree([&] { special_ = data::document_tokens(generator.tokenizer(), generator.data()); });
    const auto end = ranks.ids_on_rank_0([&] {
      const auto id = data::answer_end(generator.tokenizer(), special_);
      return id ? std::vector{*id} : std::vector<std::int32_t>();
    });
    for (const auto id : end) generator.add_end(id);
    std::int64_t room = 0;
    ranks.agree([&] { room = room_of(arguments, generator.model().config); });
    ranks.run([&] { generator.make_room(room); });
    reset();
  }

  void reset() {
    messages_.clear();
    if (!arguments_.system.empty()) messages_.push_back({"system", arguments_.system});
  }

  /// Prints the answer to a message while it is made. Returns false for a message for which there
  /// is no room; it is left out, and a line says so.
  bool answer(const std::string& message) {
    messages_.push_back({"user", message});
    // Python may render the template: on one rank.
    const auto prompt = ranks_.ids_on_rank_0([&] {
      const std::string name = "conversation";
      return data::chat_prompt(generator_.tokenizer(), special_, messages_,
                               {name, std::ssize(messages_)});
    });
    const auto room = generator_.positions() - std::ssize(prompt);
    if (room < 1) {
      messages_.pop_back();
      if (ranks_.prints())
        fmt::print(stderr,
                   "the conversation would have {} tokens, and there is room for {}; {}--context "
                   "makes room\n",
                   prompt.size(), generator_.positions(),
                   messages_.size() > 1 ? "/reset begins a new one, " : "");
      return false;
    }
    catch_stop_signals();  // Ctrl-C is for this answer
    const auto print = [&](const std::string& piece) {
      if (ranks_.prints()) print_now(piece);
    };
    GeneratedText made;
    ranks_.run([&] {
      made = generator_.continue_from(prompt, prompt, std::min(room, max_tokens()), print,
                                      [&] { return is_interrupted(); });
      print("\n");
    });
    messages_.push_back({"assistant", std::move(made.text)});
    return true;
  }

 private:
  std::int64_t max_tokens() const { return arguments_.max_tokens.value_or(generator_.positions()); }
  /// Rank 0 decides, so that all end alike.
  bool is_interrupted() const {
    return !ranks_.on_rank_0([] { return std::string(received_stop_signal() != 0 ? "1" : ""); })
                .empty();
  }

  const Ranks& ranks_;
  Generator& generator_;
  const GenerationArguments& arguments_;
  data::DocumentTokens special_;
  std::vector<data::ChatMessage> messages_;
};

/// Returns the user's next line; nothing at the end of the input.
std::optional<std::string> next_line(const Ranks& ranks, bool is_terminal) {
  constexpr char there = '+';  // before a line, so that an empty one differs from the end
  const auto read = ranks.on_rank_0([&] {
    if (is_terminal) print_now("> ");
    std::string line;
    return std::getline(std::cin, line) ? there + line : "";
  });
  return read.empty() ? std::nullopt : std::optional(read.substr(1));
}

}  // namespace

int chat(const Ranks& ranks, Generator& generator, const GenerationArguments& arguments,
         const std::string& message) {
  Conversation conversation(ranks, generator, arguments);
  if (!message.empty()) {
    if (!conversation.answer(message)) return static_cast<int>(ExitCode::bad_input);
    return received_stop_signal() == 0 ? 0 : 128 + received_stop_signal();
  }
  const bool is_terminal = ::isatty(STDIN_FILENO) == 1;
  if (is_terminal && ranks.prints())
    fmt::print(stderr, "{}; Ctrl-C ends an answer, /reset the conversation, Ctrl-D all\n",
               arguments.model);
  while (const auto line = next_line(ranks, is_terminal)) {
    if (*line == "/reset")
      conversation.reset();
    else if (!line->empty())
      conversation.answer(*line);
    const int signal = received_stop_signal();
    if (signal != 0 && signal != SIGINT) return 128 + signal;
  }
  if (is_terminal && ranks.prints()) print_now("\n");
  return 0;
}

}  // namespace llamesh::app
