#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "app/program/options.hpp"

namespace llamesh::app {

/// Arguments of commands that load a model.
struct ModelArguments {
  std::string model;      ///< checkpoint, run folder, or Hugging Face folder
  std::string adapter;    ///< PEFT folder with adapters of the model; empty: none
  std::string tokenizer;  ///< empty: the model's own
  std::string dtype = "fp32";
  std::string device = "auto";            ///< as for train
  std::int64_t tensor_parallel_size = 0;  ///< ranks that hold the model together; 0: all
};

inline void add_model(CLI::App& command, ModelArguments& to, const char* tensor_parallel_size) {
  command
      .add_option("MODEL", to.model,
                  "A checkpoint, a run folder (its newest good one), or a Hugging Face folder")
      ->required();
  command.add_option("--adapter", to.adapter,
                     "A PEFT folder whose LoRA adapters are added to the model");
  command.add_option("--tokenizer", to.tokenizer, "Use this one instead of the model's own");
  command.add_option("--dtype", to.dtype,
                     "Dtype of the weights in memory: fp32 (the default), bf16");
  command.add_option("--tensor-parallel-size", to.tensor_parallel_size, tensor_parallel_size)
      ->check(CLI::Range(1, 1 << 20));
  add_device(command, to.device);
}

}  // namespace llamesh::app
