#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/store/location.hpp"

namespace llamesh::app {

/// A container of named tensors: a checkpoint, a Hugging Face folder, a .safetensors file.
class TensorSource {
 public:
  struct Entry {
    std::string name;   ///< in a checkpoint with its group, e.g. /model/model.norm.weight
    std::string dtype;  ///< e.g. BF16
    std::vector<std::int64_t> shape;
  };

  virtual ~TensorSource() = default;
  virtual const std::vector<Entry>& entries() const = 0;
  /// Loads an entry, verified by checksums if there are any.
  virtual std::vector<float> load(const Entry& entry) const = 0;
  /// Returns true for a checkpoint: it has other tensors besides the model's, and group prefixes in
  /// names.
  virtual bool has_groups() const { return false; }
};

/// Names what open_tensors() opens, for the help of commands.
inline constexpr auto tensor_source_help =
    "A run folder, a checkpoint, a Hugging Face folder or a .safetensors file";

/// Opens `location`; for a run its newest good checkpoint. Throws a user error if it holds no
/// tensors.
std::unique_ptr<TensorSource> open_tensors(const checkpoint::Location& location);

/// Opens a Hugging Face folder as a checkpoint names the model's parameters: a family's folders may
/// rename, transpose and fuse them.
std::unique_ptr<TensorSource> open_parameters(const std::filesystem::path& folder);

}  // namespace llamesh::app
