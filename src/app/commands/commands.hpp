#pragma once

#include <string>
#include <vector>

#include "app/program/command.hpp"
#include "app/program/output_file.hpp"
#include "data/data_options.hpp"

/// Declarations of the subcommands, and the functions behind those that tests call or that several
/// files implement. Each runs to its end and returns the exit code, or throws an Error that main()
/// prints.
namespace llamesh::app {

Declare declare_train, declare_plan, declare_inspect, declare_verify, declare_diff, declare_status,
    declare_replay, declare_provenance, declare_convert, declare_generate, declare_chat,
    declare_evaluate, declare_tokenize, declare_version;

struct PlanArguments {
  std::string inputs;                  ///< YAML file
  std::vector<std::string> overrides;  ///< key.path=value
  int ranks = 1;
  int ranks_per_node = 0;         ///< 0: all on one node
  std::string hardware = "h100";  ///< a built-in name, or a file
  double storage_rate = 0;        ///< checkpoint write rate, bytes/s; 0: measured, or 10 GB/s
  double imbalance = 1;           ///< rows at the busiest rank of an expert axis / their mean
  bool attained = false;          ///< at the rates that whole runs reach
  bool sweep = false;             ///< over meshes, strategies, checkpointing and micro-batch
  bool dry_run = false;           ///< simulate all ranks to check that they agree
  Output output = Output::text;
};
/// Runs `llamesh plan`: memory, traffic and time per step for a launch, before there is one. Needs
/// no MPI, GPU or data. Returns 0, or 1 if it does not fit into the hardware's memory; throws if
/// ranks in a dry run disagree.
int plan(const PlanArguments& arguments);

struct TokenizeArguments {
  std::string tokenizer;            ///< name for tokenizer::open_tokenizer
  std::vector<std::string> inputs;  ///< text files, and JSON records (.jsonl, .json)
  std::string output;               ///< an OutputFile name; NAME.idx: a Megatron-LM pair
  int threads = 0;                  ///< 0: as many as the process may run at once
  std::string separator;            ///< text between documents; empty: a file is a document
  Existing existing = Existing::refuse;
  int show = 0;  ///< records of each JSON file to print; 0: write `output`
  data::ChatTemplate chat_template = data::ChatTemplate::automatic;
  data::LossOn loss_on = data::LossOn::assistant;
  data::Reasoning reasoning = data::Reasoning::refuse;
  data::RecordColumns columns = {};

  /// Returns the options for JSON records.
  data::DataOptions data_options() const;
};

/// Prints the first `arguments.show` records of each JSON file as the model sees them. Tokens
/// in the loss are in color, or between {+ and +} if standard output is no terminal.
void show_records(const TokenizeArguments& arguments, const std::vector<std::string>& files);

/// Runs `llamesh tokenize`: writes all inputs' documents in order, each with the tokenizer's prefix
/// and suffix tokens (for JSONL see data::parse_jsonl and data::DocumentTokens), as one token file
/// or pair (data::TokenFileWriter). Instructions and conversations also get a loss mask. The files
/// get their names once they are complete. With `show`, show_records() instead. Returns the exit
/// code.
int tokenize(const TokenizeArguments& arguments);

/// Describes a run folder, a folder of checkpoints, a checkpoint, a Hugging Face folder, a
/// .safetensors or a token file, or a Megatron-LM pair by either file, in a table. Needs no MPI.
int inspect(const std::string& name, Output output);

/// Reads every byte in a checkpoint (for a run: its newest one) and compares checksums, or every
/// tensor in a Hugging Face folder or .safetensors file, whose elements must be finite. Returns 0
/// only if all is good, else prints the faults and returns 74. Needs no MPI.
int verify(const std::string& name, Output output);

/// Compares two checkpoints, Hugging Face folders or .safetensors files tensor by tensor: maximum
/// absolute and relative difference. A run stands for its newest good checkpoint; against a folder
/// or file, only a checkpoint's model counts. Returns 0 if all are bit-identical as fp32, else 1.
/// Needs no MPI.
int diff(const std::string& a, const std::string& b, Output output);

/// Repetition of `status` until the run ends.
enum class Watch : bool { no, yes };

/// Runs `llamesh status`: shows the status of a run (status/run_status.hpp), or of each run in a
/// folder, from any machine that sees the folder, while it runs or later. With Watch::yes it
/// repeats every two seconds until the run ends: in place on a terminal, else only if something has
/// happened. Returns 0.
int status(const std::string& folder, Output output, Watch watch);

/// Runs `llamesh provenance`: writes ro-crate-metadata.json and provenance.json into the folder
/// `to`, or prints both as one JSON object for "-". Empty: the run folder. Replaces its own earlier
/// files, and others only with Existing::replace. Needs no MPI. The run may be training: nothing
/// else in its folder is touched. Returns 0.
int provenance(const std::string& run, const std::string& to, const std::string& license,
               Existing existing);

/// Returns version, commit, compiler and libraries, for --version.
std::string version_text();

}  // namespace llamesh::app
