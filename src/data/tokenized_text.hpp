#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "data/data_options.hpp"
#include "data/token_ids.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::data {

/// Returns true if such files are tokenized up front: JSONL, and text with a tokenizer other than
/// `byte`. Everything else stays mapped.
inline bool is_tokenized(const DataOptions& options) {
  return options.format == Format::jsonl ||
         (options.format == Format::text && options.tokenizer != "byte");
}

/// Throws a user error if there is more text or JSONL than is sensible to tokenize at every launch
/// (1 GiB), or if a file cannot be read. Formats that stay mapped pass.
void check_text_size(const DataOptions& options, std::span<const std::string> files);

/// Opens the tokenizer for text or JSONL. Throws a user error if its ids exceed `vocab_size`.
std::shared_ptr<const tokenizer::Tokenizer> open_fitting_tokenizer(const std::string& name,
                                                                   std::int64_t vocab_size);

/// Tokens from text or JSONL files, one file after another, in one block of bytes without
/// addresses, so that processes can share it.
class TokenizedText {
 public:
  /// Tokenizes the files (see TokenStream). Throws a user error with the file's name if it is
  /// missing, unreadable, empty or malformed, or if check_text_size does.
  TokenizedText(const DataOptions& options, std::span<const std::string> files,
                std::int64_t vocab_size, const tokenizer::Tokenizer& tokenizer);
  /// Wraps a copy of another object's bytes(), aligned to 8, in memory that `owner` keeps alive.
  TokenizedText(std::shared_ptr<const void> owner, std::span<const std::uint8_t> bytes);

  std::span<const std::uint8_t> bytes() const { return bytes_; }
  IdArray ids() const;
  /// Returns the end position of each file's tokens.
  std::span<const std::int64_t> file_ends() const;
  /// Returns the first token of each document.
  std::span<const std::int64_t> documents() const;
  /// Returns the ranges masked from the loss: tokens [0] to [1], [2] to [3], ... Sorted; JSONL
  /// only.
  std::span<const std::int64_t> masked_ranges() const;
  /// Returns the tokenizer's hash.
  std::uint64_t vocabulary_hash() const;

 private:
  struct Footer;
  Footer footer() const;
  std::span<const std::int64_t> numbers(std::int64_t first, std::int64_t count) const;

  std::shared_ptr<const void> owner_;
  std::span<const std::uint8_t> bytes_;
};

}  // namespace llamesh::data
