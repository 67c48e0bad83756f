#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llamesh::tokenizer {

/// Properties of the ids that every tokenizer has.
struct Vocabulary {
  std::vector<std::string> bytes;  ///< text of each id; empty for holes and control tokens
  std::optional<std::int32_t> bos = std::nullopt;
  std::optional<std::int32_t> eos = std::nullopt;
  std::optional<std::int32_t> unknown = std::nullopt;  ///< SentencePiece's <unk>
  std::vector<std::int32_t> prefix_ids = {};  ///< what the tokenizer's rules put before a document
  std::vector<std::int32_t> suffix_ids = {};  ///< and after it
  /// How many leading spaces decoding removes, where encoding added one.
  std::size_t dropped_spaces = 0;
};

/// Whether a chunk of text begins its document.
enum class Chunk : std::uint8_t { first, continuation };

/// Turns text into token ids and back. Text is UTF-8; the open_... functions say what each
/// tokenizer does with other bytes. Immutable and thread-safe.
class Tokenizer {
 public:
  explicit Tokenizer(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Appends the ids of one chunk, which next_cut made; without prefix and suffix tokens.
  virtual void encode_chunk(std::string_view text, Chunk chunk,
                            std::vector<std::int32_t>& ids) const = 0;
  /// The first position p >= `from` at which `text` may be cut, or text.size(): the ids of the
  /// text are those of the chunk before p and, as a continuation, of the text from p on. Whether p
  /// is one depends on the bytes next to p only.
  virtual std::size_t next_cut(std::string_view text, std::size_t from) const = 0;

  /// The ids of a whole text, without prefix and suffix tokens.
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// Appends the ids of a text that begins a document, or continues it.
  void encode(std::string_view text, Chunk chunk, std::vector<std::int32_t>& ids) const;
  /// The bytes of the ids: not valid UTF-8 where those of the ids are not. Added and special tokens
  /// appear as they are written. Ids outside the vocabulary are a user error.
  std::string decode(std::span<const std::int32_t> ids) const;
  /// The bytes of one id, without regard to dropped_spaces.
  const std::string& bytes_of(std::int32_t id) const;

  /// One more than the largest id.
  std::int64_t vocab_size() const { return static_cast<std::int64_t>(vocabulary_.bytes.size()); }
  std::optional<std::int32_t> bos() const { return vocabulary_.bos; }
  std::optional<std::int32_t> eos() const { return vocabulary_.eos; }
  /// The tokens before a prompt or document by the tokenizer's rules: BOS, or nothing.
  const std::vector<std::int32_t>& prefix_ids() const { return vocabulary_.prefix_ids; }
  /// The tokens after a document: by the tokenizer's rules, and EOS where it has one.
  std::vector<std::int32_t> suffix_ids() const;
  /// XXH3-64 of the ids' bytes. Tokenizers with other rules may share it.
  std::uint64_t vocabulary_hash() const;

 private:
  friend class TextStream;
  /// The id's bytes, at the start of a text without those spaces that are to be dropped.
  std::string_view visible_bytes(std::int32_t id, std::size_t& spaces_to_drop) const;

  Vocabulary vocabulary_;
};

/// Decodes generated ids one by one into text that can be printed at once: holds bytes back until
/// their character is complete. Bytes that are not UTF-8 become U+FFFD.
class TextStream {
 public:
  /// `tokenizer` is borrowed.
  explicit TextStream(const Tokenizer& tokenizer)
      : tokenizer_(tokenizer), spaces_to_drop_(tokenizer.vocabulary_.dropped_spaces) {}
  /// The text that `id` completes; empty while a character is unfinished.
  std::string push(std::int32_t id);
  /// What is left at the end.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::size_t spaces_to_drop_;
  std::string held_;  ///< the begin of a character
};

/// Opens `byte` (every byte is a token), a SentencePiece .model, a Hugging Face tokenizer.json, or
/// a folder that holds tokenizer.json or tokenizer.model. Throws a user error that names the file
/// and what in it is malformed or not supported.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name);

/// A Hugging Face tokenizer.json: byte-level BPE (GPT-2, Llama 3 and others by their own pattern)
/// or BPE with byte fallback (Llama 2). Bytes that are not UTF-8 become the tokens of these bytes.
/// A vocabulary may lack some of those (SmolLM2's lacks control characters): text that needs them
/// is a user error. BOS and EOS are those of tokenizer_config.json in the same folder, or else the
/// added tokens with the usual names; prefix and suffix tokens are the post-processor's template.
std::shared_ptr<const Tokenizer> open_hugging_face(const std::string& path);

/// The same from the texts of tokenizer.json and tokenizer_config.json (may be empty); `name` is
/// for messages.
std::shared_ptr<const Tokenizer> parse_hugging_face(const std::string& name, std::string_view json,
                                                    std::string_view config);

/// A SentencePiece model. Bytes that are not UTF-8 become U+FFFD, as the library does. BOS is a
/// prefix token where tokenizer_config.json in the same folder says so (add_bos_token).
std::shared_ptr<const Tokenizer> open_sentencepiece(const std::string& path);

/// The same from the bytes of the model and the text of tokenizer_config.json (may be empty).
std::shared_ptr<const Tokenizer> parse_sentencepiece(const std::string& name,
                                                     const std::string& model,
                                                     std::string_view config);

}  // namespace llamesh::tokenizer
