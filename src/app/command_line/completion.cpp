#include "app/command_line/completion.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <utility>
#include <vector>

#include "core/text.hpp"

namespace llamesh::app {
namespace {

/// A command under its name with those above it, "llamesh bench gemm".
struct Command {
  std::string name;
  const CLI::App* declared;
};

/// Returns the command and all below it.
std::vector<Command> commands_from(const CLI::App* declared, const std::string& above) {
  const auto name = above + declared->get_name();
  std::vector<Command> all{{name, declared}};
  for (const auto* below : declared->get_subcommands([](const CLI::App*) { return true; }))
    for (const auto& command : commands_from(below, name + ' ')) all.push_back(command);
  return all;
}

/// Returns the options that have a long name.
std::vector<const CLI::Option*> options_of(const Command& command) {
  return command.declared->get_options(
      [](const CLI::Option* option) { return !option->get_lnames().empty(); });
}

std::string long_name(const CLI::Option* option) {
  return "--" + option->get_lnames().front();
}

bool takes_value(const CLI::Option* option) {
  return option->get_expected_max() > 0;
}

/// Returns the words that CLI::IsMember allows, from its "TEXT:{auto,cpu,cuda}".
std::vector<std::string> values_of(const CLI::Option* option) {
  const auto type = option->get_type_name();
  const auto begin = type.find('{'), end = type.find('}');
  if (begin == type.npos || end == type.npos) return {};
  return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
}

/// Writer of the arms of a shell's `case`.
class Cases {
 public:
  explicit Cases(Shell shell) : shell_(shell) {}

  /// Begins an arm that offers words.
  void begin(const std::string& pattern) {
    text_ += fmt::format("      {}) choices=(", shell_word(pattern));
  }
  /// Adds a word, which zsh shows with its help.
  void add(const std::string& word, const std::string& help = "") {
    const bool with_help = shell_ == Shell::zsh && !help.empty();
    text_ += ' ' + shell_word(with_help ? word + ':' + help : word);
  }
  void end() { text_ += " ) ;;\n"; }

  std::string take() { return std::move(text_); }

 private:
  Shell shell_;
  std::string text_;
};

std::string subcommands(const std::vector<Command>& commands, Shell shell) {
  Cases cases(shell);
  for (const auto& [name, declared] : commands) {
    const auto below = declared->get_subcommands([](const CLI::App*) { return true; });
    if (below.empty()) continue;
    cases.begin(name);
    for (const auto* command : below) cases.add(command->get_name(), command->get_description());
    cases.end();
  }
  return cases.take();
}

std::string options(const std::vector<Command>& commands, Shell shell) {
  Cases cases(shell);
  for (const auto& command : commands) {
    cases.begin(command.name);
    for (const auto* option : options_of(command))
      cases.add(long_name(option), option->get_description());
    cases.end();
  }
  return cases.take();
}

/// Returns arms for the words that an option takes, and one for options that take others.
std::string values(const std::vector<Command>& commands, Shell shell) {
  Cases cases(shell);
  std::vector<std::string> others;
  for (const auto& command : commands)
    for (const auto* option : options_of(command)) {
      const auto words = values_of(option);
      const auto pattern = command.name + ' ' + long_name(option);
      if (words.empty() && takes_value(option)) others.push_back(shell_word(pattern));
      if (words.empty()) continue;
      cases.begin(pattern);
      for (const auto& word : words) cases.add(word);
      cases.end();
    }
  return cases.take() + fmt::format("      {}) ;;\n", fmt::join(others, "|\\\n      "));
}

/// The function of both shells. {0}: the words, {1}: index of the word to be completed, {2}: index
/// of the first word after llamesh.
constexpr std::string_view body = R"(_llamesh() {{
  local command=llamesh word=${{{0}[{1}]}} i
  local -a choices
  choices=()
  for ((i = {2}; i < {1}; ++i)); do
    case "$command ${{{0}[i]}}" in
      {3}) command+=" ${{{0}[i]}}" ;;
    esac
  done
  case "$command ${{{0}[{1} - 1]}}" in
{4}      *)
        if [[ $word == -* ]]; then
          case "$command" in
{5}          esac
        else
          case "$command" in
{6}          esac
        fi ;;
  esac
)";

}  // namespace

std::string completion_script(const CLI::App& parser, Shell shell) {
  const auto commands = commands_from(&parser, "");
  std::vector<std::string> names;
  for (const auto& command : commands)
    if (command.declared != &parser) names.push_back(shell_word(command.name));
  const bool bash = shell == Shell::bash;
  const auto function =
      fmt::format(body, bash ? "COMP_WORDS" : "words", bash ? "COMP_CWORD" : "CURRENT",
                  bash ? 1 : 2, fmt::join(names, "|\\\n      "), values(commands, shell),
                  options(commands, shell), subcommands(commands, shell));
  if (bash)
    return "# Completion for bash, written by llamesh completion bash.\n" + function +
           "  COMPREPLY=()\n"
           "  mapfile -t COMPREPLY < <(compgen -W \"${choices[*]}\" -- \"$word\")\n}\n"
           "complete -o default -F _llamesh llamesh\n";
  return "#compdef llamesh\n# Completion for zsh, written by llamesh completion zsh.\n" + function +
         "  if ((${#choices})); then _describe llamesh choices; else _files; fi\n}\n"
         "_llamesh \"$@\"\n";
}

}  // namespace llamesh::app
