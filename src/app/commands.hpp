#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/sampling.hpp"

/// The subcommands. Each runs to its end and returns the exit code, or throws an Error that main()
/// prints.
namespace llamesh::app {

/// How a command prints its result: for people, or one JSON object (docs/json.md).
enum class Output : bool { text, json };

struct TrainArguments {
  std::string inputs;                  ///< YAML file
  std::vector<std::string> overrides;  ///< key.path=value
  bool print_config = false;
  bool print_mesh = false;
  bool print_units = false;
  bool print_all = false;       ///< of the units: equal layers are not folded
  int ranks = 0;                ///< prints of a launch on paper; 0: of this one
  int ranks_per_node = 0;       ///< of its machines; 0: one machine
  std::string device = "auto";  ///< auto, cpu, cuda
  bool check = false;           ///< looks at the nodes (train/preflight.hpp) instead of training
};
int train(const TrainArguments& arguments);

struct ConvertArguments {
  std::string from;            ///< a checkpoint, a run folder, or a Hugging Face folder
  std::string to;              ///< a new hf:FOLDER, or a new checkpoint
  std::string dtype = "fp32";  ///< of an exported folder: fp32, bf16, fp16
  std::string max_shard_size = "5GB";
};

struct GenerateArguments {
  std::string model;  ///< a checkpoint, a run folder, or a Hugging Face folder
  std::string prompt;
  std::string prompt_file;
  std::string tokenizer;  ///< empty: the model's own
  std::string dtype = "fp32";
  std::string device = "auto";  ///< as of train
  std::int64_t max_tokens = 128;
  model::SamplingOptions sampling;
};

struct EvaluateArguments {
  std::string model;  ///< as of generate
  std::vector<std::string> files;
  std::string tokenizer;  ///< empty: the model's own
  std::string dtype = "fp32";
  std::string device = "auto";  ///< as of train
  std::int64_t sequence_length = 512;
  bool tokens = false;      ///< the files hold token ids
  std::string token_dtype;  ///< uint16 or uint32: ids without llm.c's header; empty: with it
  Output output = Output::text;
};

/// Version, commit, compiler and libraries, for --version.
std::string version_text();

}  // namespace llamesh::app
