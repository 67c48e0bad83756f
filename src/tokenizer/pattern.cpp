#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/pattern.hpp"

#include <pcre2.h>

#include <algorithm>
#include <array>

#include "core/error.hpp"

namespace llamesh::tokenizer {
namespace {

/// Patterns for which splits_words() was verified by hand.
constexpr std::array<std::string_view, 3> word_patterns = {
    // GPT-2
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    // Llama 3
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    // the same with single digits
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"};

pcre2_code* code_of(void* code) {
  return static_cast<pcre2_code*>(code);
}

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

const std::string_view gpt2_pattern = word_patterns[0];

std::string literal_pattern(std::string_view text) {
  std::string regex;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                       static_cast<unsigned char>(c) >= 0x80 || c == ' ' || c == '\n' ||
                       c == '\t' || c == '\r';
    if (!plain) regex += '\\';
    regex += c;
  }
  return regex;
}

void Pattern::Delete::operator()(void* code) const {
  pcre2_code_free(code_of(code));
}

Pattern::Pattern(const std::string& where, std::string regex)
    : where_(where),
      regex_(std::move(regex)),
      splits_words_(std::ranges::find(word_patterns, regex_) != word_patterns.end()) {
  const std::string translated = to_pcre2(where, regex_);
  int error = 0;
  PCRE2_SIZE at = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr));
  validate(code_ != nullptr, "{}: the regular expression '{}' is malformed: {}", where, regex_,
           message_of(error));
  std::uint32_t matches_empty = 0;
  pcre2_pattern_info(code_of(code_.get()), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  validate(matches_empty == 0, "{}: the regular expression '{}' can match no characters at all",
           where, regex_);
  pcre2_jit_compile(code_of(code_.get()), PCRE2_JIT_COMPLETE);  // if this fails, pcre2_match
                                                                // interprets
}

struct Pattern::Matcher::State {
  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

void Pattern::Matcher::Delete::operator()(State* state) const {
  pcre2_match_data_free(state->data);
  pcre2_match_context_free(state->context);
  pcre2_jit_stack_free(state->stack);
  delete state;
}

Pattern::Matcher::Matcher(const Pattern& pattern) : pattern_(&pattern) {
  constexpr std::uint32_t max_steps = 50'000'000;  // far above what a reasonable pattern takes
  state_.reset(new State{pcre2_match_data_create(1, nullptr), pcre2_match_context_create(nullptr),
                         pcre2_jit_stack_create(32 << 10, 16 << 20, nullptr)});
  pcre2_set_match_limit(state_->context, max_steps);
  pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
}

std::optional<Pattern::Matcher::Match> Pattern::Matcher::find(std::string_view text,
                                                              std::size_t from) {
  const int result =
      pcre2_match(code_of(pattern_->code_.get()), reinterpret_cast<PCRE2_SPTR>(text.data()),
                  text.size(), from, PCRE2_NO_UTF_CHECK, state_->data, state_->context);
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  validate(result >= 0, "{}: the regular expression '{}' cannot cut this text: {}",
           pattern_->where_, pattern_->regex_, message_of(result));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(state_->data);
  return Match{ends[0], ends[1]};
}

}  // namespace llamesh::tokenizer
