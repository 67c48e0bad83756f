#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace llamesh::tokenizer {

/// The GPT-2 pattern, which ByteLevel uses with use_regex.
extern const std::string_view gpt2_pattern;
/// The pattern for Digits: Rust's char::is_numeric, which has 13 numbers from Unicode 17, too.
extern const std::string_view digit_pattern;

/// A text's characters: whether some are newer than Unicode 14 (has_newer_characters).
enum class Characters : std::uint8_t { older, newer };

/// Words that are known to be one match if they are ASCII and an ASCII character or the end
/// follows, with or without a space before them.
enum class Words : std::uint8_t {
  unknown,
  letters,    ///< letters
  case_runs,  ///< upper-case letters, then lower-case ones, where no apostrophe follows
};

/// Newlines that are known to end a match if a visible character follows.
enum class Lines : std::uint8_t {
  unknown,
  after_visible,     ///< those behind a visible character
  all,               ///< all, as white space up to a newline is one match, whatever follows
  all_before_slash,  ///< all, but a slash may belong to the match
};

/// A regular expression from a tokenizer.json (Oniguruma syntax, as in Hugging Face's library),
/// compiled by PCRE2 with its JIT. Accepts only syntax with the same meaning in both: literals,
/// classes, also [a&&[^b]], \s \S \d \b $ \p{category} \p{Han}, groups (?: and (?i:, lookahead,
/// alternation, repetition.
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
    /// if the expression takes too long on this text. With Characters::newer it takes up to three
    /// times as long.
    std::optional<Match> find(std::string_view text, std::size_t from,
                              Characters characters = Characters::newer);

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
  Words words() const { return words_; }
  Lines lines() const { return lines_; }
  /// Returns true if no match is known to touch an ASCII letter, a space or a newline.
  bool leaves_words() const { return leaves_words_; }

 private:
  struct Delete {
    void operator()(void* code) const;
  };
  /// Returns a pcre2_code. Throws as the constructor does.
  void* compile(const std::string& translated) const;

  std::string where_;
  std::string regex_;
  Words words_ = Words::unknown;
  Lines lines_ = Lines::unknown;
  bool leaves_words_ = false;
  /// pcre2_code for Characters::older, which is faster, and Characters::newer
  std::array<std::unique_ptr<void, Delete>, 2> codes_;
};

/// Translates the expression to PCRE2 syntax. Throws as Pattern does.
std::string to_pcre2(const std::string& where, std::string_view regex, Characters characters);

/// Returns an expression that matches only `text`.
std::string literal_pattern(std::string_view text);

}  // namespace llamesh::tokenizer
