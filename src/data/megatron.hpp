#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "data/mapped_file.hpp"
#include "data/token_ids.hpp"

namespace llamesh::data {

/// Returns NAME for NAME, NAME.bin or NAME.idx.
std::string megatron_stem(const std::string& name);

/// Returns true if a file that begins with `bytes` is a pair's index.
bool is_megatron_index(std::string_view bytes);

/// A view of the index in a Megatron-LM pair (its megatron/core/datasets/indexed_dataset.py):
/// NAME.bin holds the ids of all sequences one after another, NAME.idx the document starts:
///
///     9 bytes  "MMIDIDX\0\0"        8  version, 1           1  type of the ids
///     8  sequences n                8  m, one more than there are documents
///     n int32  length of each sequence, in ids
///     n int64  where it begins in the .bin, in bytes
///     m int64  the sequence with which each document begins; the last is n
///
/// All little-endian. Megatron's "sequences" are pieces of documents (sentences, or the whole), not
/// training sequences.
class MegatronIndex {
 public:
  /// Properties of a .bin that its index needs.
  struct IdsFile {
    std::string path;  ///< for messages
    std::int64_t bytes;
  };
  /// Throws a user error that names `path` if the bytes are no index, or do not describe `ids`
  /// exactly. Refuses id types other than uint8, uint16 and int32.
  MegatronIndex(std::span<const std::uint8_t> bytes, const std::string& path, const IdsFile& ids);

  std::int64_t id_bytes() const { return id_bytes_; }
  std::int64_t documents() const { return std::max<std::int64_t>(documents_ - 1, 0); }
  /// Returns the first id at or after `from` that begins a document, or the number of ids.
  std::int64_t next_document(std::int64_t from) const;

 private:
  void check_sequences(const std::string& path, const IdsFile& ids) const;
  void check_documents(const std::string& path) const;
  std::int64_t begin_of(std::int64_t document) const;

  std::int64_t id_bytes_ = 0;
  std::int64_t ids_ = 0;
  std::int64_t sequences_ = 0;
  std::int64_t documents_ = 0;             ///< m
  const std::uint8_t* lengths_ = nullptr;  ///< unaligned, like the two below
  const std::uint8_t* pointers_ = nullptr;
  const std::uint8_t* firsts_ = nullptr;
};

/// Returns the index of a pair whose documents have these lengths, one sequence each. Ids have 2
/// bytes (uint16) or 4 (int32).
std::string megatron_index(std::span<const std::int32_t> lengths, std::int64_t id_bytes);

/// A mapped pair of files.
class MegatronFile {
 public:
  /// Opens the pair by its name, or by either file's name. Throws a user error that names the file
  /// if one is missing, and for MegatronIndex's reasons.
  explicit MegatronFile(const std::string& name);

  const std::string& path() const { return ids_file_.path(); }
  IdArray ids() const { return {ids_file_.bytes(), index_.id_bytes()}; }
  std::int64_t documents() const { return index_.documents(); }
  std::span<const std::uint8_t> index_bytes() const { return index_file_.bytes(); }
  /// Runs MappedFile::check() on both files.
  void check() const {
    index_file_.check();
    ids_file_.check();
  }
  std::int64_t next_document(std::int64_t from) const { return index_.next_document(from); }

 private:
  MappedFile index_file_;
  MappedFile ids_file_;
  MegatronIndex index_;
};

}  // namespace llamesh::data
