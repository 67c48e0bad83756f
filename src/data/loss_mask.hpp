#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "core/file.hpp"
#include "data/mapped_file.hpp"

namespace llamesh::data {

/// Target for a position that is masked from the loss.
inline constexpr std::int32_t ignored_target = -1;

/// Returns the name of a token file's loss mask: NAME.mask.npy for NAME.bin, NAME.npy and the
/// Megatron pair NAME; FILE.mask.npy for any other FILE.
std::string loss_mask_path(const std::string& token_file);

/// Returns true for such a name.
bool is_loss_mask(const std::string& path);

/// A mapped loss mask: one byte per token, 1 if the token counts in the loss when it is predicted,
/// else 0. The file is a NumPy array (bool, uint8 or int8) or has just these bytes, as OLMo's
/// label_mask.npy.
class LossMask {
 public:
  /// Opens the mask beside a file with `tokens` tokens; empty if there is none. Throws a user error
  /// that names the mask if its length or dtype is wrong.
  static std::optional<LossMask> beside(const std::string& token_file, std::int64_t tokens);

  std::span<const std::uint8_t> bytes() const { return bytes_; }
  /// Overwrites targets with ignored_target, where they are tokens [first, first +
  /// targets.size()) and the mask is 0. Throws a user error for a byte other than 0 and 1.
  void apply(std::int64_t first, std::span<std::int32_t> targets) const;
  /// Returns the first token in [first, last) whose byte is not 0, or `last`.
  std::int64_t next_counted(std::int64_t first, std::int64_t last) const;
  void check() const { file_.check(); }

 private:
  LossMask(MappedFile file, std::span<const std::uint8_t> bytes)
      : file_(std::move(file)), bytes_(bytes) {}

  MappedFile file_;
  std::span<const std::uint8_t> bytes_;
};

/// Writer for a loss mask. It creates the file with the first masked range, under a temporary name,
/// so files whose tokens all count have none.
class LossMaskWriter {
 public:
  explicit LossMaskWriter(const std::string& token_file);
  ~LossMaskWriter();
  LossMaskWriter(const LossMaskWriter&) = delete;
  LossMaskWriter& operator=(const LossMaskWriter&) = delete;

  /// Masks tokens [begin, end). Ranges come in order.
  void mask(std::int64_t begin, std::int64_t end);
  /// Completes the mask for `tokens` tokens and gives it its name; without a masked range, removes
  /// an earlier file with that name.
  void commit(std::int64_t tokens);

  bool masks() const { return file_.has_value(); }
  const std::string& path() const { return path_; }

 private:
  void fill(std::int64_t end, std::uint8_t value);

  std::string path_;
  std::string temporary_;
  std::optional<Descriptor> file_;
  std::int64_t end_ = 0;  ///< tokens written
  bool complete_ = false;
};

}  // namespace llamesh::data
