#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/location.hpp"
#include "core/box.hpp"

namespace llamesh::app {

/// Something that holds named tensors: a checkpoint, a Hugging Face folder, a .safetensors file.
class TensorSource {
 public:
  struct Entry {
    std::string name;   ///< in a checkpoint: with its group, e.g. /model/model.norm.weight
    std::string dtype;  ///< e.g. BF16
    std::vector<std::int64_t> shape;
  };

  virtual ~TensorSource() = default;
  virtual const std::vector<Entry>& entries() const = 0;
  /// The elements of a part of an entry, verified by checksums where there are any. Takes no memory
  /// for the others.
  virtual std::vector<float> load(const Entry& entry, const Box& part) const = 0;
  /// All elements of an entry.
  std::vector<float> load(const Entry& entry) const { return load(entry, Box::whole(entry.shape)); }
  /// A checkpoint has other tensors besides the model's, and its groups in front of names.
  virtual bool has_groups() const { return false; }
};

/// Opens `path`; for a run its newest good checkpoint. Throws a user error when it holds no
/// tensors.
std::unique_ptr<TensorSource> open_tensors(const checkpoint::Location& location);

}  // namespace llamesh::app
