#include <CLI/CLI.hpp>
#include <cstdlib>
#include <exception>
#include <functional>

#include "app/bench.hpp"
#include "app/commands.hpp"
#include "app/convert.hpp"
#include "app/diff.hpp"
#include "app/inspect.hpp"
#include "app/report.hpp"
#include "app/session.hpp"
#include "app/tokenize.hpp"
#include "app/verify.hpp"
#include "comm/launch.hpp"
#include "comm/session.hpp"
#include "core/error.hpp"

namespace llamesh::app {
namespace {

void declare_tokenize(CLI::App& cli, TokenizeArguments& arguments, std::function<int()>& command) {
  auto* tokenize_command = cli.add_subcommand("tokenize", "Make a token file out of text files");
  tokenize_command
      ->add_option("--tokenizer", arguments.tokenizer,
                   "byte, a SentencePiece .model, a tokenizer.json, or a folder with one of them")
      ->required();
  tokenize_command->add_option("--input", arguments.inputs, "Text files, in UTF-8")->required();
  tokenize_command->add_option("--output", arguments.output, "The token file (.bin)")->required();
  tokenize_command->add_option("--threads", arguments.threads, "Default: one for each core")
      ->check(CLI::Range(1, 4096));
  tokenize_command->add_option("--document-separator", arguments.separator,
                               "Text between the documents of a file (default: a file is one)");
  tokenize_command->callback([&] { command = [&] { return tokenize(arguments); }; });
}

/// Declares the subcommands; the chosen one is left in `command`.
void declare(CLI::App& cli, TrainArguments& training, TokenizeArguments& tokenizing,
             std::string& path, std::string& other_path, std::vector<std::string>& rest,
             std::int64_t& mebibytes, ConvertArguments& conversion,
             std::function<int()>& command) {
  auto* train_command = cli.add_subcommand("train", "Train a model (under mpirun or srun)");
  train_command->add_option("INPUTS", training.inputs, "YAML file")->required();
  train_command->add_option("OVERRIDES", training.overrides, "key.path=value ...");
  train_command->add_flag("--print-config", training.print_config, "Print all inputs, and stop");
  train_command->add_flag("--print-mesh", training.print_mesh,
                          "Print which rank stands where, and stop");
  train_command->add_flag("--print-units", training.print_units,
                          "Print what is gathered together, and stop");
  train_command->add_flag("--check", training.check,
                          "Check the inputs and every node, and stop; exit 75 names the bad nodes");
  train_command->callback([&] { command = [&] { return train(training); }; });

  const auto add_path_command = [&](const char* name, const char* help, const char* argument,
                                    std::function<int(const std::string&)> run) {
    auto* subcommand = cli.add_subcommand(name, help);
    subcommand->add_option(argument, path)->required();
    subcommand->callback([&, run] { command = [&, run] { return run(path); }; });
  };
  add_path_command("inspect",
                   "Say what a run folder, checkpoint, Hugging Face folder or .safetensors file is",
                   "PATH", inspect);
  add_path_command("verify", "Check every byte of a checkpoint; exit 0 only if all is good",
                   "CHECKPOINT", verify);
  add_path_command("report", "Draw a run's metrics into RUN_FOLDER/report.html", "RUN_FOLDER",
                   [](const std::string& folder) {
                     write_report(folder);
                     return 0;
                   });
  auto* converter = cli.add_subcommand(
      "convert", "A checkpoint into a Hugging Face folder, or the other way (also under mpirun)");
  converter->add_option("--from", conversion.from, "A checkpoint or run folder, or hf:FOLDER")
      ->required();
  converter->add_option("--to", conversion.to, "A new hf:FOLDER, or a new checkpoint")->required();
  converter->add_option("--dtype", conversion.dtype,
                        "Of a Hugging Face folder: fp32 (the default), bf16, fp16");
  converter->add_option("--max-shard-size", conversion.max_shard_size,
                        "Of a file of it, e.g. 500MB (default 5GB)");
  converter->callback([&] { command = [&] { return convert(conversion); }; });

  auto* compare = cli.add_subcommand(
      "diff", "Compare two checkpoints or Hugging Face folders tensor by tensor");
  compare->add_option("A", path)->required();
  compare->add_option("B", other_path)->required();
  compare->callback([&] { command = [&] { return diff(path, other_path); }; });

  declare_tokenize(cli, tokenizing, command);
  auto* bench = cli.add_subcommand("bench", "Measure this machine and llamesh on it");
  bench->require_subcommand(1);
  const auto add_bench = [&](const char* name, const char* help, std::function<int()> run) {
    bench->add_subcommand(name, help)->callback([&command, run] { command = run; });
  };
  add_bench("gemm", "GEMM rates beside the peak", bench_gemm);
  add_bench("ops", "Every other kernel beside its floor", bench_ops);
  add_bench("collectives", "Collectives beside plain MPI (under mpirun)", bench_collectives);
  auto* save_and_load = bench->add_subcommand(
      "checkpoint", "Saving and loading beside raw writes and reads (under mpirun)");
  save_and_load->add_option("--mib", mebibytes, "Size of the state, about (default 2048)");
  save_and_load->callback([&] { command = [&] { return bench_checkpoint(mebibytes); }; });
  auto* step =
      bench->add_subcommand("step", "Whole training steps beside their floor (under mpirun)");
  step->add_option("INPUTS", rest,
                   "YAML file (the 100M yardstick when left out), then key.path=value ...");
  step->callback([&] { command = [&] { return bench_step(rest); }; });
}

/// Every rank sees the same command line before MPI is there: the first one tells.
[[noreturn]] void refuse(const std::string& what) {
  if (comm::detect_launch([](const char* name) { return std::getenv(name); }).rank != 0)
    throw comm::Failed(ExitCode::bad_input);
  fail(ExitCode::bad_input, "{}; see llamesh --help", what);
}

int run(int argc, char** argv) {
  CLI::App cli{"llamesh trains Llama models over an MPI device mesh.", "llamesh"};
  cli.set_version_flag("--version", version_text());
  cli.require_subcommand(0, 1);  // with 1 a misspelt command would be reported as a missing one
  TrainArguments training;
  TokenizeArguments tokenizing;
  std::string path;
  std::string other_path;
  std::vector<std::string> rest;
  std::int64_t mebibytes = 2048;
  ConvertArguments conversion;
  std::function<int()> command;
  declare(cli, training, tokenizing, path, other_path, rest, mebibytes, conversion, command);
  try {
    cli.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    return cli.exit(request);
  } catch (const CLI::ParseError& error) {
    refuse(error.what());
  }
  if (!command) refuse("No command is given");
  return command();
}

}  // namespace
}  // namespace llamesh::app

int main(int argc, char** argv) {
  try {
    return llamesh::app::run(argc, argv);
  } catch (const llamesh::comm::Failed& error) {
    llamesh::app::await_the_teller();
    return static_cast<int>(error.code());
  } catch (const llamesh::Error& error) {
    fmt::print(stderr, "llamesh: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "llamesh: {} (this is a bug, please report it)\n", error.what());
    return static_cast<int>(llamesh::ExitCode::internal_error);
  }
}
