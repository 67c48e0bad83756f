#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/sampling.hpp"

/// The subcommands. Each runs to its end and returns the exit code, or throws an Error that main()
/// prints.
namespace llamesh::app {

struct TrainArguments {
  std::string inputs;                  ///< YAML file
  std::vector<std::string> overrides;  ///< key.path=value
  bool print_config = false;
  bool print_mesh = false;
  bool print_units = false;
  std::string device = "auto";  ///< auto, cpu, cuda
  bool check = false;           ///< looks at the nodes (train/preflight.hpp) instead of training
};
int train(const TrainArguments& arguments);

struct ConvertArguments {
  std::string from;            ///< a checkpoint (or a run folder: its newest), or hf:FOLDER
  std::string to;              ///< a new hf:FOLDER, or a new checkpoint
  std::string dtype = "fp32";  ///< of an exported folder: fp32, bf16, fp16
  std::string max_shard_size = "5GB";
};

struct GenerateArguments {
  std::string model;  ///< a checkpoint, a run folder, or hf:FOLDER
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
  bool tokens = false;  ///< the files hold token ids with llm.c's header
};

/// Version, commit, compiler and libraries, for --version.
std::string version_text();

}  // namespace llamesh::app
