#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llamesh::tokenizer {

/// Vocabulary data that every tokenizer has.
struct Vocabulary {
  std::vector<std::string> bytes;  ///< text per id; empty for holes and control tokens
  std::optional<std::int32_t> bos = std::nullopt;
  std::optional<std::int32_t> eos = std::nullopt;
  std::optional<std::int32_t> unknown = std::nullopt;  ///< SentencePiece's <unk>
  std::vector<std::int32_t> prefix_ids = {};  ///< added before a document by the tokenizer's rules
  std::vector<std::int32_t> suffix_ids = {};  ///< added after a document
  /// Number of leading spaces that decoding removes, if encoding added one.
  std::size_t dropped_spaces = 0;
};

/// Position of a text chunk: it begins its document, follows a special token, or continues a text.
enum class Chunk : std::uint8_t { first, after_token, continuation };

/// Treatment of text that is written like a special token.
enum class SpecialTokens : std::uint8_t {
  recognized,  ///< it becomes that token
  text,        ///< it stays text
};

/// A token outside the text's own vocabulary: BOS, or one with which a template marks turns.
struct ControlToken {
  std::string text;    ///< as it is written
  bool found_in_text;  ///< encode() recognizes it; otherwise only its id stands for it
  bool absorbs_space;  ///< it takes the white space behind it, if it is found in a text
};

/// Conversion between text and token ids. Text is UTF-8; the open_... functions document how each
/// tokenizer treats other bytes. Immutable and thread-safe.
class Tokenizer {
 public:
  explicit Tokenizer(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Appends the ids for one chunk from next_cut, without prefix and suffix tokens.
  virtual void encode_chunk(std::string_view text, Chunk chunk,
                            std::vector<std::int32_t>& ids) const = 0;
  /// The same, but no text becomes a special token, nor one with which chat templates mark turns.
  virtual void encode_content_chunk(std::string_view text, Chunk chunk,
                                    std::vector<std::int32_t>& ids) const {
    encode_chunk(text, chunk, ids);  // a tokenizer that recognizes none
  }
  /// Returns the token outside the text's own vocabulary that is written like this: a control
  /// token, or any added token, as tokenizer files do not call all tokens of their template
  /// special.
  virtual std::optional<std::int32_t> special_token(std::string_view /*text*/) const { return {}; }
  /// Returns the tokens that content never becomes, in the order of their ids.
  virtual std::vector<ControlToken> control_tokens() const { return {}; }
  /// Returns the first position p >= `from` at which `text` may be split, or text.size(). At a
  /// split the text's ids equal those of the chunk before p followed by those of the continuation
  /// from p on. Depends only on the bytes next to p.
  virtual std::size_t next_cut(std::string_view text, std::size_t from) const = 0;

  /// Returns the ids for a whole text, without prefix and suffix tokens.
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// Appends the ids for a text at this place in a document.
  void encode(std::string_view text, Chunk chunk, std::vector<std::int32_t>& ids,
              SpecialTokens special = SpecialTokens::recognized) const;
  /// Returns the ids' bytes: invalid UTF-8 if those are. Added and special tokens appear as
  /// written, but for characters that stand for bytes or spaces in the vocabulary. Ids outside the
  /// vocabulary are a user error.
  std::string decode(std::span<const std::int32_t> ids) const;
  /// Returns one id's bytes, ignoring dropped_spaces.
  const std::string& bytes_of(std::int32_t id) const;

  /// Returns the largest id plus one.
  std::int64_t vocab_size() const { return static_cast<std::int64_t>(vocabulary_.bytes.size()); }
  std::optional<std::int32_t> bos() const { return vocabulary_.bos; }
  std::optional<std::int32_t> eos() const { return vocabulary_.eos; }
  /// Returns the tokens that the tokenizer's rules put before a prompt or document: BOS, or none.
  const std::vector<std::int32_t>& prefix_ids() const { return vocabulary_.prefix_ids; }
  /// Returns the tokens after a document: from the tokenizer's rules, plus EOS if it has one.
  std::vector<std::int32_t> suffix_ids() const;
  /// Returns XXH3-64 over the ids' bytes. Tokenizers with other rules may share it.
  std::uint64_t vocabulary_hash() const;

 private:
  friend class TextStream;
  /// Returns the id's bytes; at the start of a text, without the spaces to be dropped.
  std::string_view visible_bytes(std::int32_t id, std::size_t& spaces_to_drop) const;

  Vocabulary vocabulary_;
};

/// Incremental decoder for generated ids whose output can be printed at once: it holds bytes back
/// until their character is complete. Bytes that are not UTF-8 become U+FFFD.
class TextStream {
 public:
  /// `tokenizer` is borrowed.
  explicit TextStream(const Tokenizer& tokenizer)
      : tokenizer_(tokenizer), spaces_to_drop_(tokenizer.vocabulary_.dropped_spaces) {}
  /// Returns the text that `id` completes; empty while a character is incomplete.
  std::string push(std::int32_t id);
  /// Returns what is left at the end.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::size_t spaces_to_drop_;
  std::string held_;  ///< start of a character
};

/// Opens `byte` (every byte is a token), a SentencePiece .model, a Hugging Face tokenizer.json, or
/// a folder that contains tokenizer.json or tokenizer.model. Throws a user error that names the
/// file and what in it is malformed or unsupported.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name);

/// Contents of the files beside a tokenizer file; empty if there is none.
struct CompanionFiles {
  std::string tokenizer_config = {};    ///< tokenizer_config.json
  std::string special_tokens_map = {};  ///< special_tokens_map.json
  std::string added_tokens = {};        ///< added_tokens.json
};

/// Opens a Hugging Face tokenizer.json: byte-level BPE (GPT-2, Llama 3 and others by their own
/// pattern) or BPE with byte fallback (Llama 2). Bytes that are not UTF-8 become those bytes'
/// tokens. If a vocabulary lacks some (SmolLM2's lacks control characters), text that needs them is
/// a user error. The tokens that the companion files name are added, as in transformers 5. BOS and
/// EOS come from them, or else from tokens with the usual names. Prefix and suffix tokens come from
/// the post-processor's template.
std::shared_ptr<const Tokenizer> open_hugging_face(const std::string& path);

/// Like open_hugging_face(), from the text of tokenizer.json; `name` is for messages.
std::shared_ptr<const Tokenizer> parse_hugging_face(const std::string& name, std::string_view json,
                                                    const CompanionFiles& companions = {});

/// Opens a SentencePiece model. Bytes that are not UTF-8 become U+FFFD, as in the library. BOS is a
/// prefix token if tokenizer_config.json in the same folder sets add_bos_token. Throws a user error
/// if a companion file names a token that the model lacks.
std::shared_ptr<const Tokenizer> open_sentencepiece(const std::string& path);

/// Like open_sentencepiece(), from the model's bytes.
std::shared_ptr<const Tokenizer> parse_sentencepiece(const std::string& name,
                                                     const std::string& model,
                                                     const CompanionFiles& companions = {});

/// A Jinja template that turns conversations into text.
struct ChatTemplateText {
  std::string file;     ///< it came from
  std::string text;     ///< JSON, if is_text is false
  bool is_text = true;  ///< the folder has a text there, as it must be
  /// What its variables stand for: "bos_token" and the like, as the files beside it name them.
  std::map<std::string, std::string> tokens = {};
};

/// Returns the template beside a tokenizer, as named for open_tokenizer(): chat_template.jinja, or
/// `chat_template` in tokenizer_config.json, a string, or a list from which it takes the one named
/// "default". Empty if there is nothing. Throws a user error that names the file if it is not a
/// JSON object.
std::optional<ChatTemplateText> chat_template_text(const std::string& tokenizer);
/// Returns the template in a file; empty if there is none. Its tokens are those beside `tokenizer`.
std::optional<ChatTemplateText> chat_template_text(const std::string& tokenizer,
                                                   const std::string& file);

/// Chunk's place in its document.
enum class DocumentEnd : bool { no, yes };

/// Callback for a chunk's ids, in order, with the number of text bytes that they encode.
using TokenSink =
    std::function<void(std::span<const std::int32_t> ids, std::size_t text_bytes, DocumentEnd end)>;

/// Encodes documents in order, each as the tokenizer's prefix tokens, its text and the suffix
/// tokens, and passes the ids to `sink` on the calling thread. `threads` threads work on chunks of
/// text; the ids do not depend on their number. Uses about a MiB of text and its ids per thread, or
/// more if a text cannot be split. Skips empty documents. Rethrows what a thread or the sink
/// throws.
void encode_documents(const Tokenizer& tokenizer, std::span<const std::string_view> documents,
                      int threads, const TokenSink& sink);

/// Returns the number of threads that this process's CPU affinity allows.
int available_threads();

}  // namespace llamesh::tokenizer
