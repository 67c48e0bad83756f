#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "data/data_options.hpp"
#include "data/token_ids.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::data {

/// Whether the files of such data are tokenized as a whole at the start: JSONL, and text with a
/// tokenizer other than `byte`. All else stays mapped.
inline bool is_tokenized(const DataOptions& options) {
  return options.format == Format::jsonl ||
         (options.format == Format::text && options.tokenizer != "byte");
}

/// Throws a user error when there is more text or JSONL than is sensible to tokenize at every start
/// (1 GiB), or a file cannot be read. Formats that stay mapped pass.
void check_text_size(const DataOptions& options, std::span<const std::string> files);

/// The tokenizer of text or JSONL. Throws a user error when its ids do not fit into `vocab_size`.
std::shared_ptr<const tokenizer::Tokenizer> open_fitting_tokenizer(const std::string& name,
                                                                   std::int64_t vocab_size);

/// The tokens of text or JSONL files, one file after another, in one block of bytes that contains
/// no address, so that processes can share it.
class TokenizedText {
 public:
  /// Tokenizes the files, as TokenStream says. Throws a user error naming the file when it is
  /// missing, unreadable, empty or malformed, or when check_text_size does.
  TokenizedText(const DataOptions& options, std::span<const std::string> files,
                std::int64_t vocab_size, const tokenizer::Tokenizer& tokenizer);
  /// From a copy of another one's bytes(), aligned to 8, in memory that `owner` keeps alive.
  TokenizedText(std::shared_ptr<const void> owner, std::span<const std::uint8_t> bytes);

  std::span<const std::uint8_t> bytes() const { return bytes_; }
  IdArray ids() const;
  /// After the last token of each file.
  std::span<const std::int64_t> file_ends() const;
  /// The first token of each document.
  std::span<const std::int64_t> documents() const;
  /// Tokens [0] to [1], [2] to [3], ... are masked from the loss. Sorted; of JSONL.
  std::span<const std::int64_t> masked_ranges() const;
  /// Of the tokenizer.
  std::uint64_t vocabulary_hash() const;

 private:
  struct Footer;
  Footer footer() const;
  std::span<const std::int64_t> numbers(std::int64_t first, std::int64_t count) const;

  std::shared_ptr<const void> owner_;
  std::span<const std::uint8_t> bytes_;
};

}  // namespace llamesh::data
