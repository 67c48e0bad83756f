#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/file.hpp"
#include "data/loss_mask.hpp"

namespace llamesh::data {

/// Writer for a token file with llm.c's header or, if the name ends in .idx, for a Megatron-LM pair
/// (see TokenStream), and for its loss mask. It writes under temporary names in the same folder;
/// commit() renames the files, otherwise they are removed.
class TokenFileWriter {
 public:
  /// Writes ids as uint16 if `vocab_size` fits, else as uint32 (a pair: int32). Throws an I/O
  /// failure with the file's name if it cannot be created or written.
  TokenFileWriter(std::string path, std::int64_t vocab_size);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  /// Appends ids. `masked_ranges`, positions in `ids` as in EncodedDocument, are not in the loss.
  void append(std::span<const std::int32_t> ids, std::span<const std::int64_t> masked_ranges = {});
  /// Ends a document. Only a pair records where documents end.
  void end_document();
  /// Syncs the bytes and the names to disk. A file without tokens is a user error.
  void commit();

  std::int64_t tokens() const { return tokens_; }
  const LossMaskWriter& mask() const { return mask_; }
  int bits() const { return wide_ ? 32 : 16; }

 private:
  void write(const void* bytes, std::size_t count);
  bool is_pair() const { return !index_path_.empty(); }

  std::string index_path_;  ///< empty: no pair
  std::string path_;        ///< of the file with the ids
  std::string temporary_;
  bool wide_;
  Descriptor file_;
  std::int64_t end_;  ///< offset of the next write
  bool complete_ = false;
  std::int64_t tokens_ = 0;
  std::vector<std::uint16_t> narrowed_;
  std::vector<std::int32_t> document_lengths_;  ///< of a pair, in tokens
  std::int64_t document_begin_ = 0;
  LossMaskWriter mask_;
};

}  // namespace llamesh::data
