#pragma once

#include <cstdint>
#include <string>

namespace llamesh::checkpoint {

/// Whether the system is told to start writing to the disk while the file is still being filled
/// (sync_file_range). On a local disk this keeps the disk busy during the transfers.
enum class EarlyWriteBack : bool { no, yes };

/// `checkpoint:` of the inputs.
struct CheckpointOptions {
  std::int64_t every_steps = 0;  ///< 0: only at the end of the run
  double every_minutes = 0;      ///< 0: not by time
  std::int64_t keep = 2;         ///< newest ones kept
  std::int64_t keep_every = 0;   ///< also keep those whose step is a multiple of this; 0: none
  std::string resume =
      "auto";  ///< auto (the newest good one of the run folder), none, or a checkpoint's path
  bool async = false;                                     ///< write beside the training
  EarlyWriteBack early_write_back = EarlyWriteBack::yes;  ///< default as measured on a local disk
};

}  // namespace llamesh::checkpoint
