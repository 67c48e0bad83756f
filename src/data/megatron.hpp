#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "data/mapped_file.hpp"
#include "data/token_ids.hpp"

namespace llamesh::data {

/// NAME of NAME, NAME.bin or NAME.idx.
std::string megatron_stem(const std::string& name);

/// Whether a file that begins with `bytes` is the index of a pair.
bool is_megatron_index(std::string_view bytes);

/// A view of the index of Megatron-LM's pair of files (megatron/core/datasets/indexed_dataset.py
/// there): NAME.bin holds the ids of all sequences one after another, NAME.idx says where documents
/// begin:
///
///     9 bytes  "MMIDIDX\0\0"        8  version, 1           1  type of the ids
///     8  sequences n                8  m, one more than there are documents
///     n int32  length of each sequence, in ids
///     n int64  where it begins in the .bin, in bytes
///     m int64  the sequence with which each document begins; the last is n
///
/// All little-endian. Megatron's "sequences" are pieces of documents (sentences, or the whole), not
/// those that a model is trained on.
class MegatronIndex {
 public:
  /// The properties of a .bin that its index needs.
  struct IdsFile {
    std::string path;  ///< for messages
    std::int64_t bytes;
  };
  /// Throws a user error that names `path` when the bytes are no index, or do not describe `ids`
  /// exactly; types other than uint8, uint16 and int32 are refused.
  MegatronIndex(std::span<const std::uint8_t> bytes, const std::string& path, const IdsFile& ids);

  std::int64_t id_bytes() const { return id_bytes_; }
  /// The first id at or after `from` with which a document begins, or the number of ids.
  std::int64_t next_document(std::int64_t from) const;

 private:
  void check_sequences(const std::string& path, const IdsFile& ids) const;
  void check_documents(const std::string& path) const;
  std::int64_t begin_of(std::int64_t document) const;

  std::int64_t id_bytes_ = 0;
  std::int64_t ids_ = 0;
  std::int64_t sequences_ = 0;
  std::int64_t documents_ = 0;             ///< m
  const std::uint8_t* lengths_ = nullptr;  ///< not aligned, as are those that follow
  const std::uint8_t* pointers_ = nullptr;
  const std::uint8_t* firsts_ = nullptr;
};

/// A pair of files, mapped.
class MegatronFile {
 public:
  /// Opens the pair by its name, or the name of either file. Throws a user error that names the
  /// file when one is missing, or as MegatronIndex does.
  explicit MegatronFile(const std::string& name);

  const std::string& path() const { return ids_file_.path(); }
  IdArray ids() const { return {ids_file_.bytes(), index_.id_bytes()}; }
  std::span<const std::uint8_t> index_bytes() const { return index_file_.bytes(); }
  /// As of MappedFile, for both files.
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
