#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/program/command.hpp"
#include "comm/mpi/launch.hpp"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace llamesh::app {

/// Parser of all subcommands.
class CommandLine {
 public:
  CommandLine();
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  CLI::App& parser() { return *cli_; }
  /// Returns the command on the parsed command line; empty if it names none.
  const Run& command() const { return command_; }
  /// Describes why the parser refused these arguments, with a hint for a misspelt command.
  std::string problem(const CLI::ParseError& error, const std::vector<std::string>& arguments);
  /// Returns the help of the command that the words name, of llamesh itself without any. Throws a
  /// user error for a word that names none.
  std::string help(const std::vector<std::string>& words) const;

 private:
  struct Named;
  Named find(const std::vector<std::string>& words) const;
  void add_help();
  void add_completion();

  std::unique_ptr<CLI::App> cli_;
  Run command_;
};

/// Runs the command in the arguments and returns its exit code. Throws a user error for invalid
/// arguments.
int run_command_line(const comm::Launch& launch, int argc, char** argv);

}  // namespace llamesh::app
