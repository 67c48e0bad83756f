#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/models/safetensors.hpp"
#include "comm/mpi/communicator.hpp"

namespace llamesh::checkpoint {

struct ExportOptions {
  StoredType type = StoredType::f32;
  std::int64_t max_shard_bytes = 5'000'000'000;  ///< tensor data per file
  /// Hugging Face folder that supplies generation_config.json and the config.json keys other than
  /// the shape; empty: none.
  std::filesystem::path source;
  /// If `source` has other parts than the language model, the new folder has them, too, unchanged.
  bool keeps_other_parts = false;
  /// Tokenizer path, as for tokenizer::open_tokenizer. From a folder all tokenizer files are
  /// copied; a .model or .json file becomes tokenizer.model or tokenizer.json, and the
  /// special-token files beside it are copied too. Empty: none.
  std::filesystem::path tokenizer;
  std::string chat_template = {};  ///< text for chat_template.jinja; empty: the tokenizer's own
  std::optional<std::int32_t> bos = {};       ///< the tokenizer's; empty: unknown
  std::vector<std::int32_t> end_tokens = {};  ///< ids that end a text, EOS first; empty: unknown
  /// Sequence length of the training, for a config.json without source; 0: unknown.
  std::int64_t positions = 0;
};

/// A file in an exported folder, with its tensors' offsets.
struct ExportFile {
  std::string name;  ///< model.safetensors, or model-00001-of-00003.safetensors
  std::string header;
  std::vector<StoredTensor> tensors;
  std::int64_t bytes;  ///< size of the whole file
};

/// Divides tensors, given by name, shape and dtype, among files with at most `max_bytes` of data
/// each, in order. A larger tensor gets a file of its own. Pure.
std::vector<ExportFile> plan_export(const std::vector<StoredTensor>& tensors,
                                    std::int64_t max_bytes);

/// Exports a checkpoint's model as a new folder that transformers can load: weights, index,
/// config.json, generation_config.json, tokenizer, other parts. Adapters are merged into their
/// weights. All ranks share the writing, tensor by tensor; each needs some 50 MiB of memory, and
/// 800 MiB for large transposed tensors. The folder gets its final name once it is complete and on
/// disk. Collective; on an error every rank throws.
void export_hf(const std::filesystem::path& checkpoint, const std::filesystem::path& target,
               const ExportOptions& options, const comm::Communicator& world);

/// Converts a Hugging Face folder into a new checkpoint at step 0. The optimizer's `moments`
/// (optim::moments_of) are zero, as in a new ShardedState. Each rank needs a few MiB of memory.
/// `config` (YAML) is stored in the checkpoint as its inputs. Collective.
void import_hf(const std::filesystem::path& folder, const std::filesystem::path& target,
               const std::vector<std::string>& moments, const std::string& config,
               const std::string& version, const comm::Communicator& world);

}  // namespace llamesh::checkpoint
