#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <algorithm>

#include "core/error.hpp"
#include "core/utf8.hpp"
#include "tokenizer/json_object.hpp"
#include "tokenizer/object_pool.hpp"
#include "tokenizer/sentencepiece_model.hpp"
#include "tokenizer/tokenizer.hpp"
#include "tokenizer/tokenizer_json.hpp"
#include "tokenizer/word_cache.hpp"

namespace llamesh::tokenizer {
namespace {

using Processor = sentencepiece::SentencePieceProcessor;
constexpr std::string_view symbol = "\u2581";  // stands for a space in a piece

std::vector<int> ids_of(const Processor& processor, std::string_view text) {
  std::vector<int> ids;
  const auto status = processor.Encode(text, &ids);
  validate(status.ok(), "SentencePiece cannot encode this text: {}", shown(status.ToString()));
  for (const int id : ids)  // a damaged model may lack a byte or symbol
    validate(id >= 0 && id < processor.GetPieceSize(),
             "SentencePiece gives a piece the id {}, but the model has {} pieces; it is damaged",
             id, processor.GetPieceSize());
  return ids;
}

std::unique_ptr<Processor> load(const std::string& path, const std::string& model) {
  auto processor = std::make_unique<Processor>();
  const auto status = [&] {
    try {
      return processor->LoadFromSerializedProto(model);
    } catch (const std::exception& error) {  // the trie inside throws
      return sentencepiece::util::Status(sentencepiece::util::StatusCode::kInternal, error.what());
    }
  }();
  validate(status.ok() && processor->GetPieceSize() > 0, "'{}' is no SentencePiece model: {}", path,
           status.ok() ? "it has no pieces" : shown(status.ToString()));
  check_normalization(path, model);
  return processor;
}

std::string bytes_of_piece(const Processor& processor, int id) {
  if (processor.IsControl(id) || processor.IsUnused(id)) return "";
  if (processor.IsUnknown(id)) return " \u2047 ";  // as the library decodes it
  const std::string& piece = processor.IdToPiece(id);
  return bytes_of_token(ByteEncoding::byte_fallback, piece);
}

/// Returns how many leading spaces decoding removes: none, one, or all.
std::size_t dropped_spaces(const Processor& processor) {
  const int space = processor.PieceToId(symbol);
  std::string text;
  if (processor.IsUnknown(space)) return 0;
  const std::vector<int> spaces(3, space);
  validate(processor.Decode(spaces, &text).ok(), "SentencePiece cannot decode its own spaces");
  return text.empty() ? text.npos : spaces.size() - text.size();
}

/// Throws a user error if a companion file names a token that the model lacks: transformers would
/// add it, and find it in texts.
void check_named_tokens(const Processor& processor, const TokenizerConfig& config) {
  for (const auto* tokens : {&config.added, &config.special})
    for (const auto& [where, token, id, has_flags] : *tokens) {
      const int known = processor.PieceToId(token.content);
      validate(
          processor.IdToPiece(known) == token.content,
          "{}: names the token '{}', which the SentencePiece model lacks; use a tokenizer.json",
          where, shown(token.content));
      validate(id != NamedId::stated || token.id == known,
               "{}: '{}' has id {} here, but {} in the SentencePiece model; correct the id", where,
               shown(token.content), token.id, known);
    }
}

/// Returns the id of a token that is named, or else `own`.
std::optional<std::int32_t> named(const Processor& processor,
                                  const std::optional<std::string>& token, int own) {
  if (token && !token->empty()) return processor.PieceToId(*token);
  return own >= 0 ? std::optional(own) : std::nullopt;
}

Vocabulary make_vocabulary(const Processor& processor, const TokenizerConfig& config) {
  check_named_tokens(processor, config);
  Vocabulary vocabulary;
  for (int id = 0; id < processor.GetPieceSize(); ++id)
    vocabulary.bytes.push_back(bytes_of_piece(processor, id));
  vocabulary.bos = named(processor, config.bos, processor.bos_id());
  vocabulary.eos = named(processor, config.eos, processor.eos_id());
  vocabulary.unknown = processor.unk_id();
  vocabulary.dropped_spaces = dropped_spaces(processor);
  if (config.add_bos.value_or(false) && vocabulary.bos) vocabulary.prefix_ids = {*vocabulary.bos};
  return vocabulary;
}

/// SentencePiece tokenizer that splits texts. The library treats a whole text as one sentence:
/// memory and time grow with it, and it adds a space in front. So text is split where that can be
/// undone, which is found by experiment.
class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::unique_ptr<Processor> processor, const TokenizerConfig& config,
                         bool bpe)
      : Tokenizer(make_vocabulary(*processor, config)),
        processor_(std::move(processor)),
        bpe_(bpe) {
    find_guard();
    if (!pieces_keep_to_words()) return;
    if (drops_separator(' ')) space_ = Cut::drops;
    if (drops_separator('\n'))
      newline_ = Cut::drops;
    else if (keeps_newline())
      newline_ = Cut::keeps;
  }

  void encode_chunk(std::string_view text, Chunk chunk,
                    std::vector<std::int32_t>& ids) const override {
    // The library knows no special tokens: what follows one is a text of its own.
    if (chunk == Chunk::after_token) chunk = Chunk::first;
    const auto words = words_.acquire([] { return std::make_unique<WordCache>(); });
    // BPE goes word by word, so that most words are cache hits. Unigram goes in runs: the library
    // adds up a text's scores in fp32, and in runs this short rounding changes no token (over
    // megabytes it does, docs/tokenizers.md).
    const std::size_t least = bpe_ ? 1 : 4096;
    while (!text.empty()) {
      const std::size_t cut = next_cut(text, std::min(least, text.size()));
      encode_run(text.substr(0, cut), chunk, *words, ids);
      text.remove_prefix(cut);
      chunk = Chunk::continuation;
    }
  }

  std::optional<std::int32_t> special_token(std::string_view text) const override {
    const int id = processor_->PieceToId(text);
    if (processor_->IsUnknown(id) || !processor_->IsControl(id)) return std::nullopt;
    return id;
  }

  std::vector<ControlToken> control_tokens() const override {
    std::vector<ControlToken> tokens;
    for (int id = 0; id < processor_->GetPieceSize(); ++id)
      if (processor_->IsControl(id)) tokens.push_back({processor_->IdToPiece(id), false, false});
    return tokens;
  }

  std::size_t next_cut(std::string_view text, std::size_t from) const override {
    for (std::size_t at = std::max<std::size_t>(from, 1); at + 1 < text.size(); ++at)
      if (cut_of(text[at]) != Cut::none && visible(text[at - 1]) &&
          begins_visibly(text.substr(at + 1)))
        return at;
    return text.size();
  }

 private:
  enum class Cut : std::uint8_t {
    none,   ///< not a separator
    drops,  ///< the separator becomes the space that the library adds to the next chunk
    keeps,  ///< starts the next chunk; the library's added prefix is removed
  };

  /// Encodes a run without a possible cut. A long run is encoded in parts, the one exception to
  /// next_cut's guarantee: tokens across part boundaries differ. The library takes 224 bytes of
  /// memory per byte, and BPE takes quadratic time.
  void encode_run(std::string_view run, Chunk chunk, WordCache& words,
                  std::vector<std::int32_t>& ids) const {
    // Only a separator makes up for the space that the library adds.
    const bool guarded =
        chunk == Chunk::continuation && cut_of(run.front()) == Cut::none && !guard_.empty();
    if (!guarded) {
      const std::size_t end = part_end(run);
      encode_part(run.substr(0, end), chunk, words, ids);
      run.remove_prefix(end);
    }
    for (; !run.empty(); run.remove_prefix(part_end(run))) {
      const auto found = ids_of(*processor_, guard_ + std::string(run.substr(0, part_end(run))));
      const auto kept = std::span(found).subspan(std::min(ids_of_guard_, found.size()));
      ids.insert(ids.end(), kept.begin(), kept.end());
    }
  }

  /// Returns the end of a run's next part: before a character in the vocabulary, so that it does
  /// not merge with the guard into one unknown token; otherwise at least between characters.
  std::size_t part_end(std::string_view run) const {
    constexpr std::size_t longest_part = 64 << 10;
    if (run.size() <= longest_part) return run.size();
    validate(!guard_.empty(),
             "{} bytes of text without a space are too many for this SentencePiece model (at most "
             "{}); put spaces or line ends into the text",
             run.size(), longest_part);
    std::size_t between = longest_part;
    for (std::size_t at = longest_part; at > longest_part / 2; --at) {
      const std::size_t bytes = utf8_length(run.substr(at));
      if (bytes == 0) continue;
      if (between == longest_part) between = at;
      if (is_piece(run.substr(at, bytes))) return at;
    }
    return between;
  }

  void encode_part(std::string_view text, Chunk chunk, WordCache& words,
                   std::vector<std::int32_t>& ids) const {
    std::size_t skip = 0;
    if (chunk == Chunk::continuation) {
      if (cut_of(text.front()) == Cut::drops)
        text.remove_prefix(1);
      else if (cut_of(text.front()) == Cut::keeps)
        skip = ids_before_newline_;
    }
    // A text that begins with a newline is encoded differently if it is split there.
    const bool cached =
        bpe_ && text.size() <= WordCache::longest && (skip > 0 || !text.starts_with('\n'));
    if (cached) {
      const auto known = words.find(text);
      if (!known.empty()) {
        ids.insert(ids.end(), known.begin(), known.end());
        return;
      }
    }
    const auto found = ids_of(*processor_, text);
    const auto kept = std::span(found).subspan(std::min(skip, found.size()));
    ids.insert(ids.end(), kept.begin(), kept.end());
    if (cached) words.put(text, kept);
  }

  /// ASCII only, so that nothing is normalized together with what follows.
  static bool visible(char c) { return c > ' ' && c < 0x7F; }
  Cut cut_of(char c) const { return c == ' ' ? space_ : c == '\n' ? newline_ : Cut::none; }

  /// Returns true if no piece spans a space or contains a newline.
  bool pieces_keep_to_words() const {
    for (int id = 0; id < processor_->GetPieceSize(); ++id) {
      const std::string& piece = processor_->IdToPiece(id);
      if (piece.find('\n') != piece.npos || piece.find(' ') != piece.npos) return false;
      const std::size_t word = piece.find_first_not_of(symbol);  // bytes: none is ASCII
      if (word != piece.npos && piece.find(symbol, word) != piece.npos) return false;
    }
    return true;
  }

  template <class Expected>
  bool holds(std::string_view between, const Expected& expected) const {
    for (const char* left : {"a", "Z.", "word"})
      for (const char* right : {"b", "Q", "word"}) {
        auto ids = ids_of(*processor_, left);
        const auto rest = expected(right);
        ids.insert(ids.end(), rest.begin(), rest.end());
        if (ids_of(*processor_, std::string(left).append(between).append(right)) != ids)
          return false;
      }
    return true;
  }

  bool drops_separator(char separator) const {
    return holds(std::string(1, separator),
                 [&](const char* right) { return ids_of(*processor_, right); });
  }

  bool keeps_newline() {
    const auto alone = ids_of(*processor_, "\n");
    const int newline = processor_->PieceToId("<0x0A>");
    if (alone.empty() || alone.back() != newline || !processor_->IsByte(newline)) return false;
    ids_before_newline_ = alone.size() - 1;
    return holds("\n", [&](const char* right) {
      auto ids = ids_of(*processor_, std::string("\n").append(right));
      ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(
                                               std::min(ids_before_newline_, ids.size())));
      return ids;
    });
  }

  bool is_piece(std::string_view text) const {
    return !processor_->IsUnknown(processor_->PieceToId(text));
  }

  /// Returns true if `guard` in front of a text absorbs what the library adds there, so that the
  /// text is encoded as in mid-sentence. The text begins with a character in the vocabulary.
  bool is_separable(const std::string& guard) const {
    for (int id = 0; id < processor_->GetPieceSize(); ++id)
      if (processor_->IdToPiece(id).find(guard) != std::string::npos) return false;
    const auto alone = ids_of(*processor_, guard);
    if (alone.empty()) return false;
    for (const char* left : {"a", "Z.", "word"})
      for (const std::string right : {"b", "Q", "word"}) {
        if (!is_piece(right.substr(0, 1))) continue;
        auto ids = ids_of(*processor_, left + guard);
        const auto behind = ids_of(*processor_, guard + right);
        if (ids == ids_of(*processor_, left) || behind.size() <= alone.size() ||
            !std::equal(alone.begin(), alone.end(), behind.begin()))
          return false;
        ids.insert(ids.end(), behind.begin() + std::ssize(alone), behind.end());
        if (ids_of(*processor_, fmt::format("{}{}{}", left, guard, right)) != ids) return false;
      }
    return true;
  }

  void find_guard() {
    for (const char* guard : {"\n", "\ue000"})  // a private-use character, which vocabularies lack
      if (is_separable(guard)) {
        guard_ = guard;
        ids_of_guard_ = ids_of(*processor_, guard).size();
        return;
      }
  }

  std::unique_ptr<Processor> processor_;
  bool bpe_;
  mutable ObjectPool<WordCache> words_;
  Cut space_ = Cut::none;
  Cut newline_ = Cut::none;
  std::size_t ids_before_newline_ = 0;
  std::string guard_;  ///< goes before a continuation; empty: no suitable text
  std::size_t ids_of_guard_ = 0;
};

}  // namespace

std::shared_ptr<const Tokenizer> parse_sentencepiece(const std::string& name,
                                                     const std::string& model,
                                                     const CompanionFiles& companions) {
  return std::make_shared<const SentencePieceTokenizer>(
      load(name, model), parse_tokenizer_config(name, companions), is_bpe(model));
}

std::shared_ptr<const Tokenizer> open_sentencepiece(const std::string& path) {
  return parse_sentencepiece(path, read_tokenizer_file(path), read_companion_files(path));
}

}  // namespace llamesh::tokenizer
