#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/data_options.hpp"

namespace llamesh::data {

/// A view of token ids as stored in a file: unsigned little-endian integers, unaligned.
class IdArray {
 public:
  IdArray() = default;
  /// `id_bytes` is 1, 2 or 4.
  IdArray(std::span<const std::uint8_t> bytes, std::int64_t id_bytes)
      : bytes_(bytes), id_bytes_(id_bytes) {}

  std::int64_t size() const { return static_cast<std::int64_t>(bytes_.size()) / id_bytes_; }
  std::int64_t id_bytes() const { return id_bytes_; }
  std::span<const std::uint8_t> bytes() const { return bytes_; }
  /// Returns ids [first, first + count).
  IdArray slice(std::int64_t first, std::int64_t count) const {
    return {bytes_.subspan(static_cast<std::size_t>(first * id_bytes_),
                           static_cast<std::size_t>(count * id_bytes_)),
            id_bytes_};
  }
  std::uint32_t operator[](std::int64_t i) const;
  /// Writes ids [first, first + out.size()) and returns the largest, which may exceed int32.
  std::uint32_t widen(std::int64_t first, std::span<std::int32_t> out) const;
  /// Returns the first i in [from, to) with this id, or `to`.
  std::int64_t find(std::uint32_t id, std::int64_t from, std::int64_t to) const;

 private:
  std::span<const std::uint8_t> bytes_;
  std::int64_t id_bytes_ = 4;
};

/// Ids in memory, in as few bytes as the vocabulary allows.
class TokenBuffer {
 public:
  /// All ids must be below `vocab_size`.
  explicit TokenBuffer(std::int64_t vocab_size);
  void append(std::span<const std::int32_t> ids);
  IdArray ids() const { return {bytes_, id_bytes_}; }
  std::int64_t size() const { return static_cast<std::int64_t>(bytes_.size()) / id_bytes_; }
  std::vector<std::uint8_t> take() && { return std::move(bytes_); }

 private:
  std::vector<std::uint8_t> bytes_;
  std::int64_t id_bytes_;
};

/// Returns true if a file begins like an llm.c token file.
bool has_token_header(std::span<const std::uint8_t> file);

/// Returns true if a file begins like a token file that states its dtype: llm.c's or NumPy's.
bool is_token_file(std::span<const std::uint8_t> file);

/// Returns the ids in a token file. llm.c's .bin (dev/data/data_common.py in karpathy/llm.c) has a
/// header with 256 int32: magic 20240520, version 1, count, then uint16 ids; or magic 20240801,
/// version 7, count, then uint32 ids. NumPy's .npy holds one array of uint16, uint32 or int32.
/// Without a header the ids begin at once, in the dtype `stated`. Throws a user error that names
/// the file if it is none of these, truncated, or not as `stated`.
IdArray ids_of_token_file(std::span<const std::uint8_t> file, const std::string& path,
                          TokenDtype stated);

/// Presence of a loss mask beside a token file (loss_mask.hpp).
enum class MaskBeside : bool { no, yes };

/// Returns llm.c's header for `count` ids with 2 or 4 bytes each. With MaskBeside::yes its fourth
/// word, which llm.c does not use, says that the file has a loss mask.
std::array<std::int32_t, 256> token_header(std::int64_t id_bytes, std::int64_t count,
                                           MaskBeside mask = MaskBeside::no);

/// Returns true if the file has llm.c's header, and this says that it has a loss mask.
bool promises_loss_mask(std::span<const std::uint8_t> file);

}  // namespace llamesh::data
