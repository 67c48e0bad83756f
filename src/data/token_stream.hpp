#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/data_options.hpp"
#include "data/fingerprint.hpp"
#include "data/mapped_file.hpp"
#include "data/megatron.hpp"
#include "data/token_ids.hpp"
#include "data/tokenized_text.hpp"

namespace llamesh::data {

/// The target of a position that is masked from the loss.
inline constexpr std::int32_t ignored_target = -1;

/// The tokens of one or more files, one after another, as a numbered stream that knows where
/// documents begin and which tokens are in the loss. Nothing is read ahead: the files are mapped,
/// and ids are widened to int32 in read(). Only JSONL, and text with a tokenizer other than `byte`,
/// is tokenized at once, into memory.
///
/// Text: a file is a document. With `byte` every byte is a token; otherwise the tokenizer's
/// prefix tokens, the file's tokens, its suffix tokens (BOS and EOS, where it has them).
///
/// JSONL: a line is a document, as parse_jsonl says; prefix and suffix tokens as above, and with
/// `byte` byte 0 after each.
///
/// Token files: what ids_of_token_file reads. A document begins at the start of the stream and
/// after each DataOptions::eos_token.
///
/// Megatron pairs: what MegatronFile reads. Its index says where documents begin.
///
/// Random tokens: an endless stream, a function of DataOptions::seed; no file is opened. Documents
/// end with DataOptions::eos_token.
class TokenStream {
 public:
  /// Opens `files` as `options` say. Where is_tokenized(options), `tokenized` are their tokens, or
  /// they are tokenized here. Throws a user error naming the file when it is missing, unreadable,
  /// empty, cut off or malformed, when the tokenizer's ids do not fit into `vocab_size`, when
  /// check_text_size does, or when document_mask is set and nothing says where documents begin.
  TokenStream(const DataOptions& options, std::span<const std::string> files,
              std::int64_t vocab_size, std::optional<TokenizedText> tokenized = {});

  /// Number of tokens.
  std::int64_t size() const { return size_; }
  /// Writes tokens [begin, begin + out.size()), which must be within the stream. Throws a user
  /// error naming file, position and id when an id is not below the vocabulary's size. Thread-safe.
  void read(std::int64_t begin, std::span<std::int32_t> out) const;
  /// Writes ignored_target over those of tokens [begin, begin + targets.size()) that are masked
  /// from the loss: the prompts of JSONL.
  void mask_targets(std::int64_t begin, std::span<std::int32_t> targets) const;
  /// DataOptions::document_mask.
  bool masks_documents() const { return options_.document_mask; }
  /// The first token in [from, limit) with which a document begins, or `limit`, which is at most
  /// size(); `from` is at least 1. Only where masks_documents().
  std::int64_t next_document(std::int64_t from, std::int64_t limit) const;
  std::size_t files() const { return files_.size(); }  ///< 0 of random tokens
  /// The fingerprint of each file: of its ids, of what is masked from the loss, and of Megatron's
  /// index. What was tokenized is hashed as a whole, what is mapped by a sample of such pieces.
  std::vector<FileFingerprint> file_fingerprints(std::size_t piece_bytes) const;
  /// "bible.txt" or "a.bin and 3 more", for messages.
  std::string describe() const;

 private:
  struct File {
    std::string path;
    IdArray ids = {};
    std::int64_t begin = 0;  ///< where the file starts in the stream
    std::optional<MappedFile> mapped =
        {};  ///< that holds `ids`, unless megatron or tokenized_ does
    std::optional<MegatronFile> megatron = {};
    void check() const;  ///< as of MappedFile
  };
  void check_documents_are_known() const;
  void take_tokenized(std::span<const std::string> files);
  void open(const std::string& path);
  bool is_random() const { return options_.format == Format::random; }
  const File& file_of(std::int64_t token) const;
  std::int64_t next_random_document(std::int64_t from, std::int64_t limit) const;
  void add_masked_ranges(RunningHash& hash, const File& file) const;
  [[noreturn]] void fail_outside_vocabulary(const File& file, std::int64_t first,
                                            std::int64_t count) const;

  DataOptions options_;
  std::int64_t vocab_size_;
  std::vector<File> files_;
  std::int64_t size_ = 0;
  std::optional<TokenizedText> tokenized_;
};

}  // namespace llamesh::data
