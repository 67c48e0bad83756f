#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "core/file.hpp"
#include "train/records/step_record.hpp"
#include "train/setup/run_inputs.hpp"

namespace llamesh::train {

/// A run's scalars for TensorBoard: a new file events.out.tfevents.* per launch, in TFRecord
/// format. Each write reaches the file at once, as in metrics.jsonl. An I/O failure throws (exit
/// 74).
class EventFile {
 public:
  /// Opens a file in `folder`, creating it if needed, for a run that continues after `step`. Its
  /// first events make TensorBoard drop later steps from earlier files, so that each step is shown
  /// once.
  EventFile(const std::filesystem::path& folder, std::int64_t step);
  void write(const StepRecord& record);
  void write_validation(const StepRecord& record, const std::string& set = default_validation_set);

 private:
  void write(std::int64_t step, const std::map<std::string, double>& scalars);
  Descriptor file_;
};

/// Returns the bytes of one TFRecord: length, its checksum, the data, their checksum.
std::string to_record(std::string_view data);

}  // namespace llamesh::train
