#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/mapped_file.hpp"
#include "data/options.hpp"

namespace llamesh::data {

/// The tokens of one or more files, one after another without separators, as a numbered stream.
/// Nothing is read ahead of use: the files are mapped, and ids are widened when they are asked for.
/// Only text with a tokenizer other than `byte` is tokenized at once, into memory.
///
/// Text: with `byte` every byte is a token. Otherwise a file is a document: the tokenizer's
/// opening, the file's tokens, its closing (BOS and EOS, where it has them).
///
/// Token files: llm.c's .bin (dev/data/data_common.py in karpathy/llm.c) has a header of 256
/// int32: magic 20240520, version 1, count, then uint16 ids; magic 20240801, version 7, count,
/// then uint32 ids. Without a header the ids begin at once, in the type of
/// DataOptions::token_dtype. All little-endian.
class TokenStream {
 public:
  /// Opens `files` as the format, tokenizer and token_dtype of `options` say. Throws a user error
  /// naming the file when it is missing, unreadable, empty, cut off or malformed, when the
  /// tokenizer's ids do not fit into `vocab_size`, or when there is more text than is sensible to
  /// tokenize at the start (1 GiB).
  TokenStream(const DataOptions& options, std::span<const std::string> files,
              std::int64_t vocab_size);

  /// Number of tokens.
  std::int64_t size() const { return size_; }
  /// Writes tokens [begin, begin + out.size()), which must lie in the stream. Throws a user error
  /// naming file, position and id when an id is not below the vocabulary's size. Thread-safe.
  void read(std::int64_t begin, std::span<std::int32_t> out) const;
  /// "bible.txt" or "a.bin and 3 more", for messages.
  std::string describe() const;

 private:
  struct File {
    MappedFile mapped;
    std::int64_t token_bytes;           ///< 1, 2 or 4
    std::span<const std::uint8_t> ids;  ///< behind the header
    std::int64_t begin;                 ///< where the file starts in the stream
    std::vector<std::int32_t> made;     ///< what `ids` are the bytes of, where they were made here
    std::int64_t count() const { return static_cast<std::int64_t>(ids.size()) / token_bytes; }
  };
  void add(File file);
  void add_text(const std::string& tokenizer, std::span<const std::string> files);
  static File open_tokens(MappedFile mapped, TokenDtype stated);
  void read_file(const File& file, std::int64_t first, std::span<std::int32_t> out) const;
  [[noreturn]] void fail_outside_vocabulary(const File& file, std::int64_t first,
                                            std::int64_t count) const;

  std::vector<File> files_;
  std::int64_t size_ = 0;
  std::int64_t vocab_size_;
};

}  // namespace llamesh::data
