#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/data_options.hpp"
#include "data/fingerprint.hpp"
#include "data/loss_mask.hpp"
#include "data/mapped_file.hpp"
#include "data/megatron.hpp"
#include "data/token_ids.hpp"
#include "data/tokenized_text.hpp"

namespace llamesh::data {

/// A numbered stream over the concatenated tokens in one or more files. It knows where documents
/// begin and which tokens are in the loss. Nothing is read ahead: the files are mapped, and read()
/// widens ids to int32. Only JSONL, and text with a tokenizer other than `byte`, is tokenized up
/// front, into memory.
///
/// Text: a file is a document. With `byte` every byte is a token; otherwise the tokenizer's prefix
/// tokens, the file's tokens, and its suffix tokens (BOS and EOS, if any).
///
/// JSONL: a line is a document (see parse_jsonl), with prefix and suffix tokens as above; `byte`
/// adds byte 0 after each.
///
/// Token files: see ids_of_token_file. A document begins at the start of the stream and after each
/// DataOptions::eos_token.
///
/// Megatron pairs: see MegatronFile. Its index gives the document starts.
///
/// Token files and Megatron pairs may have a loss mask beside them (LossMask::beside()).
///
/// Random tokens: an endless stream, a function of DataOptions::seed; no file is opened. Documents
/// end with DataOptions::eos_token.
class TokenStream {
 public:
  /// Opens `files` according to `options`. If is_tokenized(options), `tokenized` holds their
  /// tokens, or they are tokenized here. Throws a user error with the file's name if it is missing,
  /// unreadable, empty, truncated or malformed, if the tokenizer's ids exceed `vocab_size`, if
  /// check_text_size does, or if knows_documents() and nothing marks document starts.
  TokenStream(const DataOptions& options, std::span<const std::string> files,
              std::int64_t vocab_size, std::optional<TokenizedText> tokenized = {});

  /// Returns the number of tokens.
  std::int64_t size() const { return size_; }
  /// Writes tokens [begin, begin + out.size()), which must be within the stream. Throws a user
  /// error with file, position and id if an id is outside the vocabulary. Thread-safe.
  void read(std::int64_t begin, std::span<std::int32_t> out) const;
  /// Overwrites masked targets (JSONL prompts, loss masks) among tokens [begin, begin +
  /// targets.size()) with ignored_target. Throws as LossMask::apply().
  void mask_targets(std::int64_t begin, std::span<std::int32_t> targets) const;
  /// Returns the first token in [from, limit) that counts in the loss when it is predicted, or
  /// `limit`, which is at most size(); `from` is at least 1. Reads a loss mask up to that token,
  /// and with document_mask looks whether it begins a document.
  std::int64_t next_target(std::int64_t from, std::int64_t limit) const;
  /// Returns DataOptions::document_mask.
  bool masks_documents() const { return options_.document_mask; }
  /// Returns DataOptions::pairs.
  bool has_pairs() const { return options_.pairs; }
  /// Returns DataOptions::packing.
  Packing packing() const { return options_.packing; }
  /// Returns the number of the document in tokenized text that begins at token `begin`. Pair p has
  /// the documents 2 p, which is preferred, and 2 p + 1.
  std::int64_t document_at(std::int64_t begin) const;
  std::int64_t pairs() const { return std::ssize(tokenized_->documents()) / 2; }
  /// Returns true if the options need to know where documents begin: to mask or to pack them.
  bool knows_documents() const { return options_.document_mask || options_.packs_documents(); }
  /// Returns the first token in [from, limit) that begins a document, or `limit`, which is at most
  /// size(); `from` is at least 1. Requires knows_documents(), or tokenized text.
  std::int64_t next_document(std::int64_t from, std::int64_t limit) const;
  std::size_t files() const { return files_.size(); }  ///< 0 for random tokens
  /// Returns the number of files with a loss mask.
  std::size_t masked_files() const;
  /// Returns each file's fingerprint, over its ids, the loss mask, and Megatron's index. Tokenized
  /// data are hashed in full, mapped data by sampling pieces of this size.
  std::vector<FileFingerprint> file_fingerprints(std::size_t piece_bytes) const;
  /// Returns "bible.txt" or "a.bin and 3 more", for messages.
  std::string describe() const;

 private:
  struct File {
    std::string path;
    IdArray ids = {};
    std::int64_t begin = 0;                 ///< file start within the stream
    std::optional<MappedFile> mapped = {};  ///< holds `ids`, unless megatron or tokenized_ does
    std::optional<MegatronFile> megatron = {};
    std::optional<LossMask> mask = {};
    void check() const;  ///< as MappedFile::check()
  };
  void check_documents_are_known() const;
  void take_tokenized(std::span<const std::string> files);
  void open(const std::string& path);
  void open_mask(File& file);
  bool is_random() const { return options_.format == Format::random; }
  const File& file_of(std::int64_t token) const;
  std::int64_t next_random_document(std::int64_t from, std::int64_t limit) const;
  std::int64_t next_unmasked(std::int64_t from, std::int64_t limit) const;
  void apply_masks(std::int64_t begin, std::span<std::int32_t> targets) const;
  void add_masked_ranges(RunningHash& hash, const File& file) const;
  [[noreturn]] void fail_outside_vocabulary(const File& file, std::int64_t first,
                                            std::int64_t count) const;

  DataOptions options_;
  std::int64_t vocab_size_;
  std::vector<File> files_;
  std::int64_t size_ = 0;
  bool has_masks_ = false;  ///< of files
  std::optional<TokenizedText> tokenized_;
};

}  // namespace llamesh::data
