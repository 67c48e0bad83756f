#include "app/command_line/command_line.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <initializer_list>

#include "app/bench/bench.hpp"
#include "app/command_line/completion.hpp"
#include "app/command_line/help_formatter.hpp"
#include "app/commands/commands.hpp"
#include "app/program/program.hpp"
#include "app/report/report.hpp"
#include "core/enum_names.hpp"
#include "core/log.hpp"

namespace llamesh::app {
namespace {

void add_device(CLI::App* command, std::string& device) {
  command->add_option("--device", device, "auto (the default), cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
}

void add_json(CLI::App* command, Output& output) {
  command->add_flag_callback(
      "--json", [&output] { output = Output::json; }, "Print one JSON object (docs/json.md)");
}

/// Adds --force, for commands that write an OutputFile.
void add_force(CLI::App* command, Existing& existing) {
  command->add_flag_callback(
      "--force", [&existing] { existing = Existing::replace; }, "Replace an existing file");
}

/// Returns the words for an enum's values in input files.
template <class E>
std::vector<std::string> words_of() {
  std::vector<std::string> words;
  for (const auto& [word, value] : enum_names(E{}).words) words.emplace_back(word);
  return words;
}

/// Adds an option whose words are those of a key in input files.
template <class E, class Value>
void add_named(CLI::App* command, const char* option, Value& value, const char* help) {
  command
      ->add_option_function<std::string>(
          option, [&value](const std::string& word) { value = *value_of_name<E>(word); }, help)
      ->check(CLI::IsMember(words_of<E>()));
}

/// Adds two examples, without the leading "llamesh".
void add_examples(CLI::App* command, std::initializer_list<const char*> lines) {
  std::string text = "Examples:";
  for (const char* line : lines) text += std::string("\n  ") + line;
  command->footer(text);
}

}  // namespace

CommandLine::~CommandLine() = default;

CommandLine::CommandLine()
    : cli_(std::make_unique<CLI::App>("llamesh trains Llama-class models over an MPI device mesh.",
                                      "llamesh")) {
  cli_->formatter(std::make_shared<HelpFormatter>());
  cli_->set_version_flag("--version", version_text());
  cli_->require_subcommand(0, 1);  // with 1 a misspelt command would be reported as a missing one
  add_train();
  add_supervise();
  add_plan();
  add_inspection();
  add_models();
  add_tokenize();
  add_bench();
  add_help();
}

void CommandLine::runs(CLI::App* subcommand, std::function<int()> run) {
  subcommand->callback([this, run = std::move(run)] { command_ = run; });
}

void CommandLine::add_train() {
  auto& to = train_;
  auto* command = cli_->add_subcommand("train", "Train a model (under mpirun or srun)");
  command->add_option("INPUTS", to.inputs, "YAML file")->required();
  command->add_option("OVERRIDES", to.overrides, "key.path=value ...");
  add_device(command, to.device);
  command->add_flag("--print-config", to.print_config, "Print all inputs, and stop");
  command->add_flag("--print-mesh", to.print_mesh, "Print which rank is where, and stop");
  command->add_flag("--print-units", to.print_units,
                    "Print which weights are gathered together, and stop");
  command->add_flag("--print-spec", to.print_spec,
                    "Print how each weight is divided among the ranks, and stop");
  command->add_flag(
      "--all", to.print_all,
      "With --print-units and --print-spec: list every layer, even if layers are equal");
  auto* ranks = command
                    ->add_option("--ranks", to.ranks,
                                 "Print for this many ranks, without a launch, data or weights")
                    ->check(CLI::Range(1, 1 << 20));
  command
      ->add_option("--ranks-per-node", to.ranks_per_node,
                   "Ranks per node (default: all on one node)")
      ->check(CLI::Range(1, 1 << 20))
      ->needs(ranks);
  command->add_flag("--check", to.check,
                    "Check the inputs and every node, and stop; exit 75 if a node is bad");
  add_examples(command,
               {"mpirun -n 4 llamesh train inputs/tiny.yaml train.steps=20",
                "llamesh train inputs/tiny.yaml --print-mesh --ranks 16 --ranks-per-node 8"});
  runs(command, [this] { return train(train_); });
}

void CommandLine::add_supervise() {
  auto& to = supervise_;
  auto* command = cli_->add_subcommand(
      "supervise", "Relaunch a run within its Slurm job after a failure, without the bad node");
  command->add_option("RUN", to.run, "The run's folder")->required();
  command->add_option("COMMAND", to.command, "After --: srun ... llamesh train ...")->required();
  command->add_option("--spares", to.spares, "Nodes of the job to keep free (default 0)")
      ->check(CLI::Range(0, 1 << 20));
  command
      ->add_option_function<std::string>(
          "--resize",
          [&to](const std::string& word) {
            to.resize = word == "shrink" ? Resize::shrink : Resize::requeue;
          },
          "With too few healthy nodes: shrink (the default) continues on those, requeue queues the "
          "job again")
      ->check(CLI::IsMember({"shrink", "requeue"}));
  add_examples(
      command,
      {"llamesh supervise runs/first --spares 1 -- srun --mpi=pmix --overlap llamesh train "
       "inputs/tiny.yaml run.folder=runs/first",
       "llamesh supervise runs/first --resize requeue -- srun llamesh train my.yaml"});
  runs(command, [this] { return supervise(supervise_); });
}

void CommandLine::add_plan() {
  auto& to = plan_;
  auto* command = cli_->add_subcommand(
      "plan", "Predict memory, traffic and time of a step; exit 1 if it does not fit");
  command->add_option("INPUTS", to.inputs, "YAML file, as for train")->required();
  command->add_option("OVERRIDES", to.overrides, "key.path=value ...");
  command->add_option("--ranks", to.ranks, "Ranks of the launch")
      ->required()
      ->check(CLI::Range(1, 1 << 20));
  command
      ->add_option("--ranks-per-node", to.ranks_per_node,
                   "Ranks per node (default: all on one node)")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--hardware", to.hardware,
                      "h100 (the default), h200, a100-80, a100-40, cpu-node, or a file like those "
                      "in inputs/hardware or from bench hardware");
  command->add_flag("--attained", to.attained,
                    "Plan at the rates that published runs reach, not at those of single kernels");
  command->add_option_function<double>(
      "--storage",
      [&to](double gigabytes) {
        if (!(gigabytes >= 1e-6 && gigabytes <= 1e6))  // nan, too
          throw CLI::ValidationError(
              "--storage",
              fmt::format("{} is out of range; allowed: 1e-06 to 1e+06 GB/s", gigabytes));
        to.storage_rate = 1e9 * gigabytes;
      },
      "Write bandwidth for checkpoints in GB/s (default: measured, else 10)");
  auto* imbalance = command->add_option_function<double>(
      "--imbalance",
      [&to](double times) {
        if (!(times >= 1 && times <= 65536))  // nan, too
          throw CLI::ValidationError("--imbalance",
                                     fmt::format("{} is out of range; allowed: 1 or more", times));
        to.imbalance = times;
      },
      "Plan the busiest rank of an expert axis, which receives this many times the mean "
      "rows (default 1: uniform routing)");
  auto* sweep =
      command->add_flag("--sweep", to.sweep,
                        "List the meshes, strategies, checkpointing modes and micro-batches that "
                        "fit, by tokens/s; what OVERRIDES set is kept");
  command
      ->add_flag("--dry-run", to.dry_run,
                 "Check all ranks: the members of each group call the same collectives in the same "
                 "order, and each element is owned and written once; exit 70 if not")
      ->excludes(sweep)
      ->excludes(imbalance);
  add_json(command, to.output);
  add_examples(command,
               {"llamesh plan inputs/clusters/llama3-8b-1x8.yaml --ranks 8 --hardware h200",
                "llamesh plan inputs/tiny.yaml mesh.axes.shard=2 --ranks 4 --json"});
  runs(command, [this] { return plan(plan_); });
}

/// Adds commands that inspect one or two paths.
void CommandLine::add_inspection() {
  constexpr auto what = "A run folder, a checkpoint, a Hugging Face folder or a .safetensors file";
  auto* command = cli_->add_subcommand("inspect", "Describe what is at a path, in a table");
  command->add_option("PATH", path_, std::string(what) + ", or a token file or Megatron-LM pair")
      ->required();
  add_json(command, output_);
  add_examples(command, {"llamesh inspect runs/tiny", "llamesh inspect --json model.safetensors"});
  runs(command, [this] { return inspect(path_, output_); });

  command = cli_->add_subcommand(
      "verify", "Check every byte of a checkpoint, or every tensor; exit 0 only if all are good");
  command->add_option("PATH", path_, std::string(what) + "; of a run the newest checkpoint")
      ->required();
  add_json(command, output_);
  add_examples(command, {"llamesh verify runs/tiny",
                         "llamesh verify --json runs/tiny/checkpoints/step_00000020"});
  runs(command, [this] { return verify(path_, output_); });

  command = cli_->add_subcommand("diff", "Compare two models or checkpoints tensor by tensor");
  command->add_option("A", path_, what)->required();
  command->add_option("B", other_path_, what)->required();
  add_json(command, output_);
  add_examples(command,
               {"llamesh diff runs/first runs/second", "llamesh diff runs/tiny hf:FOLDER"});
  runs(command, [this] { return diff(path_, other_path_, output_); });

  command = cli_->add_subcommand("status",
                                 "Show a run's step, speed, newest checkpoint and last "
                                 "failure (from any machine that sees its folder)");
  command->add_option("RUN", path_, "A run folder, or a folder of runs")->required();
  add_json(command, output_);
  command->add_flag_callback(
      "--watch", [this] { watch_ = Watch::yes; }, "Refresh every two seconds until the run ends");
  add_examples(command, {"llamesh status runs/tiny --watch", "llamesh status runs"});
  runs(command, [this] { return status(path_, output_, watch_); });

  command = cli_->add_subcommand("report",
                                 "Draw a run's metrics as an HTML page, or compare several runs");
  command->add_option("RUN", rest_, "Run folders")->required();
  command->add_option("--output", path_,
                      "Default: RUN/report.html; for several runs ./comparison.html; - is standard "
                      "output");
  add_force(command, existing_);
  add_examples(command, {"llamesh report runs/tiny",
                         "llamesh report runs/first runs/second --output both.html"});
  runs(command, [this] {
    const auto written = write_report(rest_, path_, existing_);
    if (written != "-") fmt::print("{}\n", written.string());
    return 0;
  });
}

/// Adds commands that use a trained model.
void CommandLine::add_models() {
  auto* command = cli_->add_subcommand(
      "convert", "Convert a checkpoint to a Hugging Face folder, or back (also under mpirun)");
  command
      ->add_option("--from", convert_.from, "A checkpoint or run folder, or a Hugging Face folder")
      ->required();
  command
      ->add_option("--to", convert_.to,
                   "A new Hugging Face folder from a checkpoint, or a new checkpoint from a folder")
      ->required();
  command->add_option("--dtype", convert_.dtype,
                      "Dtype of the Hugging Face folder: fp32 (the default), bf16, fp16");
  command->add_option("--max-shard-size", convert_.max_shard_size,
                      "Largest file of the folder, e.g. 500MB (default 5GB)");
  command->add_flag("--merge", convert_.merge,
                    "From a run with LoRA: the whole model with its adapters merged (default: the "
                    "adapters as a PEFT folder)");
  add_examples(command, {"llamesh convert --from runs/tiny --to FOLDER --dtype bf16",
                         "mpirun -n 8 llamesh convert --from FOLDER --to CHECKPOINT"});
  runs(command, [this] { return convert(convert_); });

  const auto add_model = [](CLI::App* to, auto& arguments, const char* tensor_parallel_size) {
    to->add_option("MODEL", arguments.model,
                   "A checkpoint, a run folder (its newest good one), or a Hugging Face folder")
        ->required();
    to->add_option("--adapter", arguments.adapter,
                   "A PEFT folder whose LoRA adapters are added to the model");
    to->add_option("--tokenizer", arguments.tokenizer, "Use this one instead of the model's own");
    to->add_option("--dtype", arguments.dtype,
                   "Dtype of the weights in memory: fp32 (the default), bf16");
    to->add_option("--tensor-parallel-size", arguments.tensor_parallel_size, tensor_parallel_size)
        ->check(CLI::Range(1, 1 << 20));
    add_device(to, arguments.device);
  };
  command = cli_->add_subcommand("generate",
                                 "Continue a prompt with a trained model (also under mpirun)");
  add_model(command, generate_, "Ranks that share each matrix; all that are started (the default)");
  command->add_option("--prompt", generate_.prompt, "Text to continue");
  command->add_option("--prompt-file", generate_.prompt_file,
                      "Read the prompt from a file; - is standard input");
  command->add_option("--max-tokens", generate_.max_tokens,
                      "Maximum number of new tokens (default: 128, or as many as the model has "
                      "positions for)");
  auto& sampling = generate_.sampling;
  command->add_option("--temperature", sampling.temperature,
                      "0 (the default): always the most likely token");
  command->add_option("--top-k", sampling.top_k, "Sample from the k most likely tokens only");
  command->add_option("--top-p", sampling.top_p,
                      "Sample from the most likely tokens that together reach probability p");
  command->add_option("--seed", sampling.seed, "Random seed of the sampling (default 0)");
  add_examples(command,
               {"llamesh generate runs/tiny --prompt \"In the beginning\"",
                "mpirun -n 4 llamesh generate hf:FOLDER --prompt-file FILE --temperature 0.7"});
  runs(command, [this] { return generate(generate_); });

  command =
      cli_->add_subcommand("evaluate", "Compute a model's loss over files (also under mpirun)");
  add_model(command, evaluate_,
            "Ranks that share each matrix (default 1); groups of them divide the sequences");
  command
      ->add_option("FILES", evaluate_.files,
                   "Text, .jsonl or .json, or token files; also folders, patterns in quotes, and "
                   "@LIST (a file with one path per line)")
      ->required();
  command->add_flag("--tokens", evaluate_.tokens,
                    "Take the files as token ids with llm.c's header, whatever their names say");
  command
      ->add_option("--token-dtype", evaluate_.token_dtype,
                   "Take the files as token ids without a header: uint16 or uint32")
      ->check(CLI::IsMember({"uint16", "uint32"}));
  add_named<data::ChatTemplate>(command, "--chat-template", evaluate_.chat_template,
                                "As data.chat_template (default: the run's; auto for a folder)");
  add_named<data::LossOn>(command, "--loss-on", evaluate_.loss_on,
                          "As data.loss_on (default: the run's; assistant for a folder)");
  add_named<data::Reasoning>(command, "--reasoning", evaluate_.reasoning,
                             "As data.reasoning (default: the run's; refuse for a folder)");
  command->add_option("--sequence-length", evaluate_.sequence_length,
                      "In tokens (default: the run's; for a Hugging Face folder 512, or the "
                      "model's positions if it has fewer)");
  add_json(command, evaluate_.output);
  add_examples(command,
               {"llamesh evaluate runs/tiny inputs/text/tiny.txt --sequence-length 64",
                "mpirun -n 4 llamesh evaluate hf:FOLDER FILE --tensor-parallel-size 2 --json"});
  runs(command, [this] { return evaluate(evaluate_); });
}

void CommandLine::add_tokenize() {
  auto& to = tokenize_;
  auto* command =
      cli_->add_subcommand("tokenize", "Tokenize text and conversations into one token file");
  command
      ->add_option("--tokenizer", to.tokenizer,
                   "byte, a SentencePiece .model, a tokenizer.json, or a folder with one of them")
      ->required();
  command
      ->add_option(
          "--input", to.inputs,
          "Text files in UTF-8, or .jsonl or .json records as for data.train; also folders, "
          "patterns in quotes, and @LIST (a file with one path per line)")
      ->required();
  auto* output =
      command->add_option("--output", to.output,
                          "The token file: NAME.bin as llm.c's, NAME.idx for a Megatron-LM pair, "
                          "which also records documents; - is standard output");
  add_force(command, to.existing);
  command->add_option("--threads", to.threads, "Default: one for each core")
      ->check(CLI::Range(1, 4096));
  command->add_option("--document-separator", to.separator,
                      "Text between documents (default: each file is one document)");
  auto* show =
      command
          ->add_option(
              "--show", to.show,
              "Instead of --output: print this many records of each JSON file as the model "
              "sees them, with the tokens that count in the loss in color")
          ->check(CLI::Range(1, 1'000'000));
  show->excludes(output);
  add_named<data::ChatTemplate>(command, "--chat-template", to.chat_template,
                                "As data.chat_template");
  add_named<data::LossOn>(command, "--loss-on", to.loss_on, "As data.loss_on");
  add_named<data::Reasoning>(command, "--reasoning", to.reasoning, "As data.reasoning");
  add_examples(
      command,
      {"llamesh tokenize --tokenizer folder --input chats.jsonl --show 2",
       "llamesh tokenize --tokenizer tokenizer.json --input a.txt chats.jsonl --output ids.idx"});
  runs(command, [this] { return tokenize(tokenize_); });
}

void CommandLine::add_bench() {
  auto* bench = cli_->add_subcommand("bench", "Measure this machine and llamesh on it");
  bench->require_subcommand(1);
  // Flush rows as they are measured, in case the benchmark is interrupted.
  bench->preparse_callback([](std::size_t) { std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ); });
  add_examples(bench, {"llamesh bench gemm", "mpirun -n 4 llamesh bench collectives"});
  const auto on_device = [&](const std::string& name, const char* help, auto run) {
    auto* measured = bench->add_subcommand(name, help);
    add_device(measured, device_);
    const auto plain = "llamesh bench " + name;
    add_examples(measured, {plain.c_str(), (plain + " --device cpu").c_str()});
    runs(measured, [this, run] { return run(device_); });
  };
  on_device("gemm", "Compare GEMM rates with the peak", bench_gemm);
  on_device("ops", "Compare every other kernel with its limit", bench_ops);
  on_device("decode", "Compare generation with reading the weights (takes 5 GB)", bench_decode);
  auto* command =
      bench->add_subcommand("collectives", "Compare collectives with plain MPI (under mpirun)");
  add_examples(command, {"mpirun -n 4 llamesh bench collectives",
                         "srun -N 2 --ntasks-per-node=8 llamesh bench collectives"});
  runs(command, bench_collectives);
  command = bench->add_subcommand(
      "checkpoint", "Compare saving and loading with raw writes and reads (under mpirun)");
  command->add_option("--mib", mebibytes_, "Approximate size of the state in MiB (default 2048)");
  add_examples(command, {"mpirun -n 4 llamesh bench checkpoint",
                         "mpirun -n 4 llamesh bench checkpoint --mib 256"});
  runs(command, [this] { return bench_checkpoint(mebibytes_); });
  add_bench_step(bench);
  command = bench->add_subcommand(
      "hardware", "Measure this machine's CPUs for plan --hardware (under mpirun, as the run)");
  command->add_option("--output", path_, "The file for plan --hardware; - is standard output")
      ->required();
  command->add_option("--seconds", seconds_, "Rough duration (default 60)")
      ->check(CLI::Range(1, 3600));
  add_force(command, existing_);
  add_examples(command,
               {"mpirun -n 2 llamesh bench hardware --output node.yaml",
                "srun -N 2 --ntasks-per-node=8 llamesh bench hardware --output node.yaml"});
  runs(command, [this] { return bench_hardware(path_, existing_, seconds_); });
}

void CommandLine::add_bench_step(CLI::App* bench) {
  auto* command = bench->add_subcommand(
      "step", "Compare whole training steps with their minimum time (under mpirun)");
  command->add_option("INPUTS", rest_,
                      "YAML file (default: inputs/llama-100m.yaml), then key.path=value ...");
  add_device(command, device_);
  command->add_option("--tune-gemms", gemm_table_,
                      "On a GPU: find the fastest algorithm for each GEMM of the step and write "
                      "them to this file, for train.gemm_table");
  add_force(command, existing_);
  add_examples(command, {"llamesh bench step",
                         "mpirun -n 4 llamesh bench step inputs/tiny.yaml train.micro_batch=2"});
  runs(command, [this] { return bench_step(rest_, device_, gemm_table_, existing_); });
}

void CommandLine::add_help() {
  auto* command = cli_->add_subcommand("help", "Print this help, or that of a command");
  command->add_option("COMMAND", rest_, "For example train, or bench gemm");
  add_examples(command, {"llamesh help train", "llamesh help bench gemm"});
  runs(command, [this] {
    fmt::print("{}", help(rest_));
    return 0;
  });

  command = cli_->add_subcommand("version", "Print what llamesh was built with, and stop");
  add_examples(command, {"llamesh version", "srun -n 1 llamesh version"});
  runs(command, [] {
    fmt::print("{}\n", version_text());
    return 0;
  });

  command = cli_->add_subcommand("completion", "Print a script that completes command lines");
  command->add_option("SHELL", path_, "bash or zsh")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
  add_examples(command, {"llamesh completion bash", "llamesh completion zsh"});
  runs(command, [this] {
    fmt::print("{}", completion_script(*cli_, path_ == "zsh" ? Shell::zsh : Shell::bash));
    return 0;
  });
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
