#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/file.hpp"

namespace llamesh::data {

/// Writes a token file with llm.c's header (TokenStream says what that is) under a temporary name
/// in the folder of `path`; it is renamed when it is complete, and removed otherwise.
class TokenFileWriter {
 public:
  /// Ids are written as uint16 when `vocab_size` fits into it, else as uint32. A file that cannot
  /// be created or written throws an I/O failure that names it.
  TokenFileWriter(std::string path, std::int64_t vocab_size);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  void append(std::span<const std::int32_t> ids);
  /// Puts the bytes on the disk, and the name. A file without tokens is a user error.
  void commit();

  std::int64_t tokens() const { return tokens_; }
  int bits() const { return wide_ ? 32 : 16; }

 private:
  void write(const void* bytes, std::size_t count);

  std::string path_;
  std::string temporary_;
  bool wide_;
  Descriptor file_;
  std::int64_t end_;  ///< where the next bytes go
  bool complete_ = false;
  std::int64_t tokens_ = 0;
  std::vector<std::uint16_t> narrowed_;
};

}  // namespace llamesh::data
