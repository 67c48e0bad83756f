#pragma once

#include "checkpoint/hf/hf_options.hpp"
#include "checkpoint/options.hpp"
#include "comm/options.hpp"
#include "data/data_options.hpp"
#include "model/llama_config.hpp"
#include "model/options.hpp"
#include "optim/options.hpp"
#include "sharding/options.hpp"
#include "train/options.hpp"

namespace llamesh::train {

/// Everything that a run is told: the options of each layer, as config/ fills them in.
struct Inputs {
  RunOptions run;
  model::LlamaConfig model;
  checkpoint::PretrainedOptions pretrained;
  comm::MeshOptions mesh;
  sharding::ShardingOptions sharding;
  sharding::PrecisionOptions precision;
  model::MemoryOptions memory;
  data::DataOptions data;
  optim::OptimizerOptions optimizer;
  optim::ScheduleOptions schedule;
  TrainOptions train;
  EvaluateOptions evaluate;
  checkpoint::CheckpointOptions checkpoint;
  LogOptions log;
};

}  // namespace llamesh::train
