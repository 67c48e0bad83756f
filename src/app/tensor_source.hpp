#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace llamesh::app {

/// What the user wrote, without the "hf:" that may stand before a Hugging Face folder.
std::filesystem::path plain_path(const std::string& path);

/// A checkpoint itself, or the newest one of a run folder or of a folder of checkpoints. Throws a
/// user error where there is none.
std::filesystem::path newest_checkpoint(const std::filesystem::path& path);

/// Whether it is a folder that holds weights as Hugging Face's save_pretrained() writes them.
bool is_hf_folder(const std::filesystem::path& path);

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
  /// All numbers of an entry, their checksums checked where there are any.
  virtual std::vector<float> load(const Entry& entry) const = 0;
  /// A checkpoint has other tensors beside the model's, and its groups in front of names.
  virtual bool has_groups() const { return false; }
};

/// Opens what `path` is; "hf:" before it is allowed. Throws a user error when it is none of them.
std::unique_ptr<TensorSource> open_tensors(const std::string& path);

}  // namespace llamesh::app
