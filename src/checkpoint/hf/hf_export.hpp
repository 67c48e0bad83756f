#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/hf/dtype_convert.hpp"
#include "checkpoint/hf/safetensors.hpp"
#include "comm/communicator.hpp"

namespace llamesh::checkpoint {

struct ExportOptions {
  StoredType type = StoredType::f32;
  std::int64_t max_shard_bytes = 5'000'000'000;  ///< of tensor data in one file
  /// A Hugging Face folder, from which generation_config.json and the keys of config.json other
  /// than the shape are taken; empty: none.
  std::filesystem::path source;
  /// What tokenizer::open_tokenizer takes: a folder of which all tokenizer files are copied, or a
  /// .model or .json that becomes tokenizer.model or tokenizer.json, with the files in its folder
  /// about its special tokens; empty: none.
  std::filesystem::path tokenizer;
};

/// A file of an exported folder and its tensors' offsets.
struct ExportFile {
  std::string name;  ///< model.safetensors, or model-00001-of-00003.safetensors
  std::string header;
  std::vector<StoredTensor> tensors;
  std::int64_t bytes;  ///< of the whole file
};

/// Divides tensors, of which name and shape are set, among files of at most `max_bytes` of data
/// each, in order; a larger tensor gets a separate file. Pure.
std::vector<ExportFile> plan_export(const std::vector<StoredTensor>& tensors, StoredType type,
                                    std::int64_t max_bytes);

/// Writes the model of a checkpoint as a new folder that transformers loads: weights, index,
/// config.json, generation_config.json, tokenizer. All ranks share the writing, tensor by tensor;
/// each needs a few MiB of memory. The folder appears under its name when it is complete and on the
/// disk. Collective; on an error every rank throws.
void export_hf(const std::filesystem::path& checkpoint, const std::filesystem::path& target,
               const ExportOptions& options, const comm::Communicator& world);

/// Makes a new checkpoint of step 0 out of a Hugging Face folder: its weights, and AdamW's moments
/// zero. Each rank needs a few MiB of memory. `config` (YAML) is kept in the checkpoint as the
/// inputs that it was made with. Collective.
void import_hf(const std::filesystem::path& folder, const std::filesystem::path& target,
               const std::string& config, const std::string& version,
               const comm::Communicator& world);

}  // namespace llamesh::checkpoint
