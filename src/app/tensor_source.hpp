#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/location.hpp"
#include "core/box.hpp"

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
  /// Loads part of an entry, verified by checksums if there are any. Takes memory for that part
  /// only.
  virtual std::vector<float> load(const Entry& entry, const Box& part) const = 0;
  /// Loads a whole entry.
  std::vector<float> load(const Entry& entry) const { return load(entry, Box::whole(entry.shape)); }
  /// Returns true for a checkpoint: it has other tensors besides the model's, and group prefixes in
  /// names.
  virtual bool has_groups() const { return false; }
};

/// Opens `location`; for a run its newest good checkpoint. Throws a user error if it holds no
/// tensors.
std::unique_ptr<TensorSource> open_tensors(const checkpoint::Location& location);

}  // namespace llamesh::app
