#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/commands/commands.hpp"
#include "app/supervise/supervisor.hpp"
#include "comm/mpi/launch.hpp"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace llamesh::app {

/// All subcommands with their arguments.
class CommandLine {
 public:
  CommandLine();
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  CLI::App& parser() { return *cli_; }
  /// Returns the command on the parsed command line; empty if it names none.
  const std::function<int()>& command() const { return command_; }
  /// Describes why the parser refused these arguments, with a hint for a misspelt command.
  std::string problem(const CLI::ParseError& error, const std::vector<std::string>& arguments);
  /// Returns the help of the command that the words name, of llamesh itself without any. Throws a
  /// user error for a word that names none.
  std::string help(const std::vector<std::string>& words) const;

 private:
  struct Named;
  Named find(const std::vector<std::string>& words) const;
  void add_train();
  void add_supervise();
  void add_plan();
  void add_inspection();
  void add_models();
  void add_tokenize();
  void add_bench();
  void add_bench_step(CLI::App* bench);
  void add_help();
  void runs(CLI::App* subcommand, std::function<int()> run);

  std::unique_ptr<CLI::App> cli_;
  TrainArguments train_;
  SuperviseArguments supervise_;
  PlanArguments plan_;
  ConvertArguments convert_;
  GenerateArguments generate_;
  EvaluateArguments evaluate_;
  TokenizeArguments tokenize_;
  std::string path_, other_path_;
  Output output_ = Output::text;
  Watch watch_ = Watch::no;
  std::vector<std::string> rest_;
  Existing existing_ = Existing::refuse;
  std::string gemm_table_;
  std::int64_t mebibytes_ = 2048;
  double seconds_ = 60;
  std::string device_ = "auto";
  std::function<int()> command_;
};

/// Runs the command in the arguments and returns its exit code. Throws a user error for invalid
/// arguments.
int run_command_line(const comm::Launch& launch, int argc, char** argv);

}  // namespace llamesh::app
