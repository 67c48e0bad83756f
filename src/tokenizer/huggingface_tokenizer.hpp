#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "tokenizer/added_tokens.hpp"
#include "tokenizer/bpe.hpp"
#include "tokenizer/object_pool.hpp"
#include "tokenizer/tokenizer.hpp"
#include "tokenizer/tokenizer_json.hpp"
#include "tokenizer/word_cache.hpp"

namespace llamesh::tokenizer {

/// BPE from a tokenizer.json. Text is processed from the outside in: added tokens, runs of valid
/// UTF-8, words by the patterns, symbols, merges.
class HuggingFaceTokenizer final : public Tokenizer {
 public:
  /// `name` is the prefix for user error messages.
  HuggingFaceTokenizer(const std::string& name, TokenizerFile file, const TokenizerConfig& config);

  void encode_chunk(std::string_view text, Chunk chunk,
                    std::vector<std::int32_t>& ids) const override;
  void encode_content_chunk(std::string_view text, Chunk chunk,
                            std::vector<std::int32_t>& ids) const override;
  std::optional<std::int32_t> special_token(std::string_view text) const override;
  std::vector<ControlToken> control_tokens() const override;
  std::size_t next_cut(std::string_view text, std::size_t from) const override;

 private:
  /// Per-thread state.
  struct Workspace {
    std::vector<Pattern::Matcher> matchers;
    WordCache words;
    std::optional<WordCache> pieces;            ///< for piece_step_, if there are further steps
    Characters characters = Characters::newer;  ///< the present text's
    std::vector<std::int32_t> symbols;
    std::string normalized, with_space;
  };
  struct Output {
    Workspace& work;
    std::vector<std::int32_t>& ids;
  };
  enum class Begin : std::uint8_t { document, section, continued };
  /// Added tokens to look for, one set after the other: raw ones, then normalized ones.
  using AddedSets = std::array<AddedTokens, 2>;

  std::unique_ptr<Workspace> make_workspace() const;
  void find_symbols();
  std::int32_t byte_id(char byte) const;
  bool spaces_part_words() const;
  void find_cuts();
  void encode_sections(std::string_view text, Chunk chunk, const AddedSets& added,
                       std::vector<std::int32_t>& ids) const;
  void encode_section(std::string_view text, Begin begin, std::span<const AddedTokens> added,
                      Output& out) const;
  void encode_plain(std::string_view text, Begin begin, Output& out) const;
  void encode_valid(std::string_view text, Begin begin, Output& out) const;
  /// Splits a piece by the steps from `step` on.
  void split_piece(std::string_view piece, std::size_t step, Output& out) const;
  void split_text(std::string_view text, std::size_t step, Output& out) const;
  void cut_before_spaces(std::string_view text, Output& out) const;
  void encode_word(std::string_view word, Output& out) const;
  void find_word(std::string_view word, std::vector<std::int32_t>& symbols) const;
  void append_symbols(std::string_view word, std::vector<std::int32_t>& symbols) const;

  static constexpr std::int32_t no_id = -1;

  std::string name_;  ///< for messages
  TokenizerFile file_;
  BytePairEncoding merges_;
  AddedSets added_;
  AddedSets added_in_content_;                ///< without special tokens
  std::array<std::int32_t, 256> byte_ids_{};  ///< token per byte, or no_id
  std::unordered_map<std::uint32_t, std::int32_t>
      character_ids_;  ///< for ByteEncoding::byte_fallback
  std::unordered_map<std::string_view, std::int32_t> whole_words_;  ///< for ignore_merges
  bool spaces_part_words_;                                          ///< no merge spans a space
  std::size_t piece_step_;             ///< the step behind the first one that keeps words whole
  bool cuts_words_ = false;            ///< text may be cut before a space between two letters
  Lines cuts_lines_ = Lines::unknown;  ///< and behind which newlines
  mutable ObjectPool<Workspace> workspaces_;
};

}  // namespace llamesh::tokenizer
