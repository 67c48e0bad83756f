#include "app/command_line/command_line.hpp"

#include <fmt/format.h>

#include "app/bench/bench.hpp"
#include "app/command_line/completion.hpp"
#include "app/command_line/help_formatter.hpp"
#include "app/commands/commands.hpp"
#include "app/program/options.hpp"
#include "app/program/program.hpp"
#include "app/report/report.hpp"
#include "app/supervise/supervisor.hpp"
#include "core/log.hpp"

namespace llamesh::app {

CommandLine::~CommandLine() = default;

CommandLine::CommandLine()
    : cli_(std::make_unique<CLI::App>("llamesh trains Llama-class models over an MPI device mesh.",
                                      "llamesh")) {
  cli_->formatter(std::make_shared<HelpFormatter>());
  cli_->set_version_flag("--version", version_text());
  cli_->require_subcommand(0, 1);  // with 1 a misspelt command would be reported as a missing one
  for (auto* declare : {declare_train, declare_supervise, declare_plan, declare_inspect,
                        declare_verify, declare_diff, declare_replay, declare_status,
                        declare_report, declare_provenance, declare_convert, declare_generate,
                        declare_chat, declare_evaluate, declare_tokenize, declare_bench})
    declare(*cli_, command_);
  add_help();
  declare_version(*cli_, command_);
  add_completion();
}

void CommandLine::add_help() {
  auto& command = add_command(*cli_, "help", "Print this help, or that of a command",
                              {"llamesh help train", "llamesh help bench gemm"});
  auto& [words] = runs(command, command_, [this](const std::vector<std::string>& asked) {
    fmt::print("{}", help(asked));
    return 0;
  });
  command.add_option("COMMAND", words, "For example train, or bench gemm");
}

void CommandLine::add_completion() {
  auto& command = add_command(*cli_, "completion", "Print a script that completes command lines",
                              {"llamesh completion bash", "llamesh completion zsh"});
  auto& [shell] = runs(command, command_, [this](const std::string& asked) {
    fmt::print("{}", completion_script(*cli_, asked == "zsh" ? Shell::zsh : Shell::bash));
    return 0;
  });
  command.add_option("SHELL", shell, "bash or zsh")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
}

int run_command_line(const comm::Launch& launch, int argc, char** argv) {
  setup_logging();
  CommandLine line;
  try {
    line.parser().parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    return line.parser().exit(request);
  } catch (const CLI::ParseError& error) {
    refuse(launch, line.problem(error, {argv + 1, argv + argc}));
  }
  if (!line.command()) refuse(launch, "no command given; see llamesh --help");
  return line.command()();
}

}  // namespace llamesh::app
