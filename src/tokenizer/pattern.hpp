#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace llamesh::tokenizer {

/// A regular expression of a tokenizer.json (Oniguruma's syntax, as Hugging Face's library has it),
/// compiled by PCRE2 with its JIT. Only syntax that means the same in both is accepted: literals,
/// classes, \s \S \d \p{category}, groups (?: and (?i:, lookahead, alternation, repetition.
class Pattern {
 public:
  /// What one thread needs to match: a JIT stack and space for a result.
  class Matcher {
   public:
    explicit Matcher(const Pattern& pattern);
    struct Match {
      std::size_t begin;
      std::size_t end;
    };
    /// The first match at or after `from`. `text` must be valid UTF-8. Throws a user error when the
    /// expression takes too long on this text.
    std::optional<Match> find(std::string_view text, std::size_t from);

   private:
    struct State;
    struct Delete {
      void operator()(State* state) const;
    };
    const Pattern* pattern_;
    std::unique_ptr<State, Delete> state_;
  };

  /// Throws a user error that begins with `where` when the expression is malformed, uses something
  /// else, or can match nothing.
  Pattern(const std::string& where, std::string regex);

  const std::string& regex() const { return regex_; }
  /// True for the patterns of GPT-2, of Llama 3 and of close relatives: ` ?` and ASCII letters
  /// followed by another ASCII character are one match in them, and a line's end before a visible
  /// character ends a match.
  bool splits_words() const { return splits_words_; }

 private:
  struct Delete {
    void operator()(void* code) const;
  };
  std::string where_;
  std::string regex_;
  bool splits_words_;
  std::unique_ptr<void, Delete> code_;  ///< pcre2_code
};

/// The GPT-2 pattern, which ByteLevel uses with use_regex.
extern const std::string_view gpt2_pattern;

/// The expression in PCRE2's syntax. Throws as Pattern does.
std::string to_pcre2(const std::string& where, std::string_view regex);

/// An expression that matches `text` and nothing else.
std::string literal_pattern(std::string_view text);

}  // namespace llamesh::tokenizer
