#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "app/command_line/command_line.hpp"
#include "core/error.hpp"
#include "core/text.hpp"

namespace llamesh::app {

/// The command that the first words of a command line name.
struct CommandLine::Named {
  const CLI::App* command;
  std::string name = "llamesh";  ///< with the commands above it
  std::string problem = {};      ///< the next word should be a command, and is none
};

CommandLine::Named CommandLine::find(const std::vector<std::string>& words) const {
  Named named{cli_.get()};
  for (const auto& word : words) {
    const auto commands = named.command->get_subcommands([](const CLI::App*) { return true; });
    if (commands.empty() || word.starts_with('-')) break;
    std::vector<std::string> names;
    for (const auto* command : commands) names.push_back(command->get_name());
    const auto found = std::ranges::find(names, word);
    if (found == names.end()) {
      named.problem = fmt::format("there is no command '{}'{}; see {} --help", excerpt(word),
                                  did_you_mean(word, names), named.name);
      break;
    }
    named.command = commands[static_cast<std::size_t>(found - names.begin())];
    named.name += ' ' + word;
  }
  return named;
}

std::string CommandLine::help(const std::vector<std::string>& words) const {
  const auto [command, name, problem] = find(words);
  if (!problem.empty()) fail(ExitCode::bad_input, "{}", problem);
  return cli_->get_formatter()->make_help(command, name, CLI::AppFormatMode::Normal);
}

std::string CommandLine::problem(const CLI::ParseError& error,
                                 const std::vector<std::string>& arguments) {
  const auto named = find(arguments);
  if (!named.problem.empty()) return named.problem;
  std::string text = error.what();
  for (const auto& word : arguments)  // as it quotes them
    if (const auto quoted = excerpt(word); quoted != word)
      for (auto begin = text.find(word); begin != text.npos; begin = text.find(word, begin + 1))
        text.replace(begin, word.size(), quoted);
  return fmt::format("{}; see {} --help", text, named.name);
}

}  // namespace llamesh::app
