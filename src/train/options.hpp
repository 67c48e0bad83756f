#pragma once

#include <cstdint>
#include <string>

namespace llamesh::train {

/// `run:` of the inputs.
struct RunOptions {
  std::string name = "run";
  std::string folder;  ///< empty: runs/<name>
  std::uint64_t seed = 1;
};

/// `train:` of the inputs.
struct TrainOptions {
  std::int64_t steps = 100;      ///< optimizer steps, counted from the start of the run
  double epochs = 0;             ///< above 0: as many steps as show the data so often, not `steps`
  std::int64_t micro_batch = 1;  ///< sequences of a rank that go through the model together
  std::int64_t global_batch =
      0;  ///< sequences of an optimizer step over all ranks; 0: ranks x micro_batch
  int threads =
      0;  ///< of each rank; 0: the cores it may use, shared among the ranks of the machine
  std::string gemm_table;  ///< file of ops::use_gemm_table(); empty: the library's own choices
};

/// `evaluate:` of the inputs.
struct EvaluateOptions {
  std::int64_t every_steps = 0;  ///< 0: never, also not at the end
  std::int64_t batches = 0;      ///< micro-batches of each rank; 0: all of the validation data
};

/// `log:` of the inputs.
struct LogOptions {
  std::int64_t every_steps = 1;  ///< between two lines of the log; metrics.jsonl has all
};

}  // namespace llamesh::train
