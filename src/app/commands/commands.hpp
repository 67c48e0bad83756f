#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/output_file.hpp"
#include "model/sampling.hpp"

/// The subcommands. Each runs to its end and returns the exit code, or throws an Error that main()
/// prints.
namespace llamesh::app {

/// How a command prints its result: as text, or as one JSON object (docs/json.md).
enum class Output : bool { text, json };

struct TrainArguments {
  std::string inputs;                  ///< YAML file
  std::vector<std::string> overrides;  ///< key.path=value
  bool print_config = false;
  bool print_mesh = false;
  bool print_units = false;
  bool print_spec = false;
  bool print_all = false;       ///< of units and spec: equal layers are not folded
  int ranks = 0;                ///< of a planned launch, for the prints; 0: this launch
  int ranks_per_node = 0;       ///< of its machines; 0: one machine
  std::string device = "auto";  ///< auto, cpu, cuda
  bool check = false;           ///< looks at the nodes (train/preflight.hpp) instead of training
};
int train(const TrainArguments& arguments);

struct PlanArguments {
  std::string inputs;                  ///< YAML file
  std::vector<std::string> overrides;  ///< key.path=value
  int ranks = 1;
  int ranks_per_node = 0;         ///< 0: all on one node
  std::string hardware = "h100";  ///< a built-in name, or a file
  double storage_rate = 10e9;     ///< bytes/s at which a checkpoint is written
  bool sweep = false;             ///< over meshes, strategies, checkpointing and micro-batch
  bool dry_run = false;           ///< of all ranks, to see that they agree
  Output output = Output::text;
};
/// `llamesh plan`: memory, traffic and time of a step of a launch, before there is one. No MPI, GPU
/// or data needed. Returns 0, or 1 where it does not fit into the hardware's memory; throws where
/// ranks of a dry run disagree.
int plan(const PlanArguments& arguments);

struct ConvertArguments {
  std::string from;            ///< a checkpoint, a run folder, or a Hugging Face folder
  std::string to;              ///< a new hf:FOLDER, or a new checkpoint
  std::string dtype = "fp32";  ///< of an exported folder: fp32, bf16, fp16
  std::string max_shard_size = "5GB";
};
/// Makes a Hugging Face folder out of a checkpoint, or a checkpoint of step 0 out of such a folder.
/// One process will do; under mpirun all ranks share the work.
int convert(const ConvertArguments& arguments);

struct GenerateArguments {
  std::string model;  ///< a checkpoint, a run folder, or a Hugging Face folder
  std::string prompt;
  std::string prompt_file;
  std::string tokenizer;  ///< empty: the model's own
  std::string dtype = "fp32";
  std::string device = "auto";  ///< as of train
  std::int64_t max_tokens = 128;
  std::int64_t tensor_parallel_size = 0;  ///< ranks that hold the model together; 0: all
  model::SamplingOptions sampling;
};
/// Continues a prompt, token by token, on the terminal. Stops after the end-of-text token. One
/// process runs without MPI; several ranks hold the model together.
int generate(const GenerateArguments& arguments);

struct EvaluateArguments {
  std::string model;  ///< as of generate
  std::vector<std::string> files;
  std::string tokenizer;  ///< empty: the model's own
  std::string dtype = "fp32";
  std::string device = "auto";  ///< as of train
  std::int64_t sequence_length = 512;
  std::int64_t tensor_parallel_size = 1;  ///< ranks that hold a model together
  bool tokens = false;                    ///< the files hold token ids
  std::string token_dtype;  ///< uint16 or uint32: ids without llm.c's header; empty: with it
  Output output = Output::text;
};
/// The mean loss, the perplexity and, for text, the bits per byte of a model over files, cut into
/// sequences as a run's validation data are, with a document mask if the model's run had one. Under
/// mpirun the ranks, or groups of them that hold a model together, share the sequences.
int evaluate(const EvaluateArguments& arguments);

struct TokenizeArguments {
  std::string tokenizer;            ///< what tokenizer::open_tokenizer takes
  std::vector<std::string> inputs;  ///< text files, and JSON records (.jsonl, .json)
  std::string output;               ///< as OutputFile takes it
  int threads = 0;                  ///< 0: as many as the process may run at once
  std::string separator;            ///< text between documents; empty: a file is a document
  Existing existing = Existing::refuse;
};

/// `llamesh tokenize`: writes the documents of all inputs in order, each with the tokenizer's
/// prefix and suffix tokens (of JSONL as data::parse_jsonl and data::DocumentTokens say, `text`
/// lines only), as one token file with llm.c's header: uint16 when the vocabulary fits into it,
/// else uint32. The file appears under its name when it is complete. Returns the exit code.
int tokenize(const TokenizeArguments& arguments);

/// Prints what a run folder, a folder of checkpoints, a checkpoint, a Hugging Face folder, a
/// .safetensors or a token file is, in a table. No MPI needed.
int inspect(const std::string& name, Output output);

/// Reads every byte of a checkpoint (of a run: its newest one) and compares it with its checksums,
/// or every tensor of a Hugging Face folder or .safetensors file, whose elements must be finite.
/// Returns 0 only if all is good, else prints what is not and returns 74. No MPI needed.
int verify(const std::string& name, Output output);

/// Compares two checkpoints, Hugging Face folders or .safetensors files tensor by tensor: the
/// largest absolute and relative difference. Of a run its newest good checkpoint is taken; of a
/// checkpoint against a folder or file only the model counts. Returns 0 when all are equal bit for
/// bit as fp32, else 1. No MPI needed.
int diff(const std::string& a, const std::string& b, Output output);

/// Whether `status` goes on until the run ends.
enum class Watch : bool { no, yes };

/// `llamesh status`: how a run stands (status/run_status.hpp), or each run of a folder of runs,
/// from any machine that sees the folder, while it runs or later. With Watch::yes every two
/// seconds, on a terminal in place, else only where something has happened, until the run ends.
/// Returns 0.
int status(const std::string& folder, Output output, Watch watch);

/// Version, commit, compiler and libraries, for --version.
std::string version_text();

}  // namespace llamesh::app
