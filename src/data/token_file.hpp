#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/file.hpp"

namespace llamesh::data {

/// Writer for a token file with llm.c's header (see TokenStream). It writes under a temporary name
/// in the same folder; commit() renames the file, otherwise it is removed.
class TokenFileWriter {
 public:
  /// Writes ids as uint16 if `vocab_size` fits, else as uint32. Throws an I/O failure with the
  /// file's name if it cannot be created or written.
  TokenFileWriter(std::string path, std::int64_t vocab_size);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  void append(std::span<const std::int32_t> ids);
  /// Syncs the bytes and the name to disk. A file without tokens is a user error.
  void commit();

  std::int64_t tokens() const { return tokens_; }
  int bits() const { return wide_ ? 32 : 16; }

 private:
  void write(const void* bytes, std::size_t count);

  std::string path_;
  std::string temporary_;
  bool wide_;
  Descriptor file_;
  std::int64_t end_;  ///< offset of the next write
  bool complete_ = false;
  std::int64_t tokens_ = 0;
  std::vector<std::uint16_t> narrowed_;
};

}  // namespace llamesh::data
