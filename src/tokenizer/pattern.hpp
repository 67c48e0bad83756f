#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace llamesh::tokenizer {

/// The GPT-2 pattern, which ByteLevel uses with use_regex.
extern const std::string_view gpt2_pattern;

/// A regular expression from a tokenizer.json (Oniguruma syntax, as in Hugging Face's library),
/// compiled by PCRE2 with its JIT. Accepts only syntax with the same meaning in both: literals,
/// classes, \s \S \d \p{category}, groups (?: and (?i:, lookahead, alternation, repetition.
class Pattern {
 public:
  /// Per-thread matching state: a JIT stack and space for a result.
  class Matcher {
   public:
    explicit Matcher(const Pattern& pattern);
    struct Match {
      std::size_t begin;
      std::size_t end;
    };
    /// Returns the first match at or after `from`. `text` must be valid UTF-8. Throws a user error
    /// if the expression takes too long on this text.
    std::optional<Match> find(std::string_view text, std::size_t from);

   private:
    struct State;
    struct Delete {
      void operator()(State* state) const;
    };
    const Pattern* pattern_;
    std::unique_ptr<State, Delete> state_;
  };

  /// Throws a user error that begins with `where` if the expression is malformed, uses unsupported
  /// syntax, or can match the empty string.
  Pattern(const std::string& where, std::string regex);

  const std::string& regex() const { return regex_; }
  /// Returns true for the GPT-2 and Llama 3 patterns and close relatives. In these, ` ?` plus ASCII
  /// letters, followed by another ASCII character, is one match, and a newline between two visible
  /// characters ends a match.
  bool splits_words() const { return splits_words_; }
  /// Returns true if all white space up to a newline is one match, whatever follows (Llama 3). With
  /// GPT-2's pattern the newline is in a match of its own if a visible character follows, but not
  /// at the end of a text.
  bool keeps_newlines() const { return splits_words_ && regex_ != gpt2_pattern; }

 private:
  struct Delete {
    void operator()(void* code) const;
  };
  std::string where_;
  std::string regex_;
  bool splits_words_;
  std::unique_ptr<void, Delete> code_;  ///< pcre2_code
};

/// Translates the expression to PCRE2 syntax. Throws as Pattern does.
std::string to_pcre2(const std::string& where, std::string_view regex);

/// Returns an expression that matches only `text`.
std::string literal_pattern(std::string_view text);

}  // namespace llamesh::tokenizer
