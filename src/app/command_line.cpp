#include "app/command_line.hpp"

#include <cstdio>

#include "app/bench.hpp"
#include "app/convert.hpp"
#include "app/diff.hpp"
#include "app/evaluate.hpp"
#include "app/generate.hpp"
#include "app/inspect.hpp"
#include "app/report.hpp"
#include "app/verify.hpp"

namespace llamesh::app {
namespace {

void add_device(CLI::App* command, std::string& device) {
  command->add_option("--device", device, "auto (the default), cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
}

}  // namespace

CommandLine::CommandLine() {
  cli_.set_version_flag("--version", version_text());
  cli_.require_subcommand(0, 1);  // with 1 a misspelt command would be reported as a missing one
  add_train();
  add_looking();
  add_models();
  add_tokenize();
  add_bench();
}

void CommandLine::runs(CLI::App* subcommand, std::function<int()> run) {
  subcommand->callback([this, run = std::move(run)] { command_ = run; });
}

void CommandLine::add_train() {
  auto& to = train_;
  auto* command = cli_.add_subcommand("train", "Train a model (under mpirun or srun)");
  command->add_option("INPUTS", to.inputs, "YAML file")->required();
  command->add_option("OVERRIDES", to.overrides, "key.path=value ...");
  add_device(command, to.device);
  command->add_flag("--print-config", to.print_config, "Print all inputs, and stop");
  command->add_flag("--print-mesh", to.print_mesh, "Print which rank stands where, and stop");
  command->add_flag("--print-units", to.print_units, "Print what is gathered together, and stop");
  command->add_flag("--check", to.check,
                    "Check the inputs and every node, and stop; exit 75 names the bad nodes");
  runs(command, [this] { return train(train_); });
}

/// Commands that look at what is there: one path each, or two.
void CommandLine::add_looking() {
  const auto add = [&](const char* name, const char* help, const char* argument, auto run) {
    auto* command = cli_.add_subcommand(name, help);
    command->add_option(argument, path_)->required();
    runs(command, [this, run] { return run(path_); });
  };
  add("inspect", "Say what a run folder, checkpoint, Hugging Face folder or .safetensors file is",
      "PATH", inspect);
  add("verify", "Check every byte of a checkpoint; exit 0 only if all is good", "CHECKPOINT",
      verify);
  add("report", "Draw a run's metrics into RUN_FOLDER/report.html", "RUN_FOLDER",
      [](const std::string& folder) {
        write_report(folder);
        return 0;
      });
  auto* compare = cli_.add_subcommand(
      "diff", "Compare two checkpoints or Hugging Face folders tensor by tensor");
  compare->add_option("A", path_)->required();
  compare->add_option("B", other_path_)->required();
  runs(compare, [this] { return diff(path_, other_path_); });
}

/// Commands that take a trained model.
void CommandLine::add_models() {
  auto* command = cli_.add_subcommand(
      "convert", "A checkpoint into a Hugging Face folder, or the other way (also under mpirun)");
  command->add_option("--from", convert_.from, "A checkpoint or run folder, or hf:FOLDER")
      ->required();
  command->add_option("--to", convert_.to, "A new hf:FOLDER, or a new checkpoint")->required();
  command->add_option("--dtype", convert_.dtype,
                      "Of a Hugging Face folder: fp32 (the default), bf16, fp16");
  command->add_option("--max-shard-size", convert_.max_shard_size,
                      "Of a file of it, e.g. 500MB (default 5GB)");
  runs(command, [this] { return convert(convert_); });

  const auto add_model = [](CLI::App* to, auto& arguments) {
    to->add_option("MODEL", arguments.model, "A checkpoint, a run folder, or hf:FOLDER")
        ->required();
    to->add_option("--tokenizer", arguments.tokenizer, "Another than the model's own");
    to->add_option("--dtype", arguments.dtype,
                   "Of the weights in memory: fp32 (the default), bf16");
    add_device(to, arguments.device);
  };
  command = cli_.add_subcommand("generate", "Continue a prompt with a trained model");
  add_model(command, generate_);
  command->add_option("--prompt", generate_.prompt, "Text to continue");
  command->add_option("--prompt-file", generate_.prompt_file, "The same from a file");
  command->add_option("--max-tokens", generate_.max_tokens, "At most (default 128)");
  auto& sampling = generate_.sampling;
  command->add_option("--temperature", sampling.temperature,
                      "0 (the default): the likeliest token");
  command->add_option("--top-k", sampling.top_k, "Among the k likeliest tokens only");
  command->add_option("--top-p", sampling.top_p, "Among the likeliest that reach probability p");
  command->add_option("--seed", sampling.seed, "Of the choices (default 0)");
  runs(command, [this] { return generate(generate_); });

  command = cli_.add_subcommand("evaluate", "Loss of a model over files (also under mpirun)");
  add_model(command, evaluate_);
  command->add_option("FILES", evaluate_.files, "Text, .jsonl, or token files with --tokens")
      ->required();
  command->add_flag("--tokens", evaluate_.tokens, "The files hold token ids with llm.c's header");
  command->add_option("--sequence-length", evaluate_.sequence_length, "In tokens (default 512)");
  runs(command, [this] { return evaluate(evaluate_); });
}

void CommandLine::add_tokenize() {
  auto& to = tokenize_;
  auto* command = cli_.add_subcommand("tokenize", "Make a token file out of text files");
  command
      ->add_option("--tokenizer", to.tokenizer,
                   "byte, a SentencePiece .model, a tokenizer.json, or a folder with one of them")
      ->required();
  command->add_option("--input", to.inputs, "Text files in UTF-8, or .jsonl with a field text")
      ->required();
  command->add_option("--output", to.output, "The token file (.bin)")->required();
  command->add_option("--threads", to.threads, "Default: one for each core")
      ->check(CLI::Range(1, 4096));
  command->add_option("--document-separator", to.separator,
                      "Text between the documents of a file (default: a file is one)");
  runs(command, [this] { return tokenize(tokenize_); });
}

void CommandLine::add_bench() {
  auto* bench = cli_.add_subcommand("bench", "Measure this machine and llamesh on it");
  bench->require_subcommand(1);
  // A row is there once it is measured, also where the benchmark is ended before its last one.
  bench->preparse_callback([](std::size_t) { std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ); });
  const auto on_device = [&](const char* name, const char* help, auto run) {
    auto* measured = bench->add_subcommand(name, help);
    add_device(measured, device_);
    runs(measured, [this, run] { return run(device_); });
  };
  on_device("gemm", "GEMM rates beside the peak", bench_gemm);
  on_device("ops", "Every other kernel beside its floor", bench_ops);
  on_device("decode", "Generation beside reading the weights (takes 5 GB)", bench_decode);
  runs(bench->add_subcommand("collectives", "Collectives beside plain MPI (under mpirun)"),
       bench_collectives);
  auto* command = bench->add_subcommand(
      "checkpoint", "Saving and loading beside raw writes and reads (under mpirun)");
  command->add_option("--mib", mebibytes_, "Size of the state, about (default 2048)");
  runs(command, [this] { return bench_checkpoint(mebibytes_); });
  command = bench->add_subcommand("step", "Whole training steps beside their floor (under mpirun)");
  command->add_option("INPUTS", rest_,
                      "YAML file (the 100M yardstick when left out), then key.path=value ...");
  add_device(command, device_);
  command->add_option("--tune-gemms", gemm_table_,
                      "On a GPU: find the fastest algorithm for each product of the step and write "
                      "them to this file, for train.gemm_table");
  runs(command, [this] { return bench_step(rest_, device_, gemm_table_); });
}

}  // namespace llamesh::app
