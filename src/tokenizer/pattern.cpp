#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/pattern.hpp"

#include <pcre2.h>

#include <algorithm>
#include <array>

#include "core/error.hpp"

namespace llamesh::tokenizer {
namespace {

constexpr std::string_view digits = "[\\p{N}\U00011DE0-\U00011DE9\U00016FF4-\U00016FF6]";

constexpr std::string_view gpt2 =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

struct KnownPattern {
  std::string_view regex;
  Words words;
  Lines lines;
};

/// Patterns that were verified by hand. tests/tokenizer/golden/make_families.py names the
/// models that have them.
constexpr auto known_patterns = std::to_array<KnownPattern>({
    {gpt2, Words::letters, Lines::after_visible},
    // Llama 3, and GPT-4's cl100k as tokenizer.json files have it
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     Words::letters, Lines::all},
    // the same with single digits: Qwen
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     Words::letters, Lines::all},
    // Ling: Qwen's in another spelling
    {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| "
     "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
     Words::letters, Lines::all},
    // Seed
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| "
     "?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
     Words::letters, Lines::all},
    // DeepSeek-V3, behind other patterns for numbers and for Chinese and Japanese
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
     "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
     Words::letters, Lines::all},
    // o200k: GPT-4o
    {"[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
     "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|"
     "\\s+(?!\\S)|\\s+",
     Words::case_runs, Lines::all_before_slash},
    // Mistral's tekken
    {"[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
     "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|"
     "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     Words::case_runs, Lines::all_before_slash},
    // Kimi K2
    {"[\\p{Han}]+|"
     "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*"
     "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
     "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+"
     "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
     "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     Words::case_runs, Lines::all},
});

/// Patterns that match numbers or East Asian characters only.
constexpr auto patterns_beside_words = std::to_array<std::string_view>(
    {"\\p{N}", "\\p{N}+", "\\p{N}{1,3}", digits, "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
     "\\d{1,3}(?=(?:\\d{3})*\\b)"});

/// Returns true for DeepSeek-V2's long list of letters, where only a-z are ASCII.
bool matches_listed_letters(std::string_view regex) {
  constexpr std::string_view begin = "\\s?[A-Za-z";
  constexpr std::string_view end = "]+";
  if (!regex.starts_with(begin) || !regex.ends_with(end)) return false;
  const auto list = regex.substr(begin.size(), regex.size() - begin.size() - end.size());
  return std::ranges::all_of(
      list, [](char c) { return c == '-' || static_cast<unsigned char>(c) >= 0x80; });
}

pcre2_code* code_of(void* code) {
  return static_cast<pcre2_code*>(code);
}

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

const std::string_view gpt2_pattern = gpt2;
const std::string_view digit_pattern = digits;

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
    : where_(where), regex_(std::move(regex)) {
  const auto* known = std::ranges::find(known_patterns, regex_, &KnownPattern::regex);
  if (known != known_patterns.end()) {
    words_ = known->words;
    lines_ = known->lines;
  } else if (matches_listed_letters(regex_)) {
    words_ = Words::letters;
  }
  leaves_words_ = std::ranges::find(patterns_beside_words, regex_) != patterns_beside_words.end();
  for (const Characters characters : {Characters::older, Characters::newer})
    codes_[static_cast<std::size_t>(characters)].reset(
        compile(to_pcre2(where, regex_, characters)));
}

void* Pattern::compile(const std::string& translated) const {
  int error = 0;
  PCRE2_SIZE at = 0;
  std::unique_ptr<void, Delete> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr));
  validate(code != nullptr, "{}: the regular expression '{}' is malformed: {}", where_, regex_,
           message_of(error));
  std::uint32_t matches_empty = 0;
  pcre2_pattern_info(code_of(code.get()), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  validate(matches_empty == 0, "{}: the regular expression '{}' can match no characters at all",
           where_, regex_);
  pcre2_jit_compile(code_of(code.get()), PCRE2_JIT_COMPLETE);  // if this fails, pcre2_match
                                                               // interprets
  return code.release();
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
                                                              std::size_t from,
                                                              Characters characters) {
  const auto& code = pattern_->codes_[static_cast<std::size_t>(characters)];
  const int result =
      pcre2_match(code_of(code.get()), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                  PCRE2_NO_UTF_CHECK, state_->data, state_->context);
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  validate(result >= 0, "{}: the regular expression '{}' cannot cut this text: {}",
           pattern_->where_, pattern_->regex_, message_of(result));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(state_->data);
  return Match{ends[0], ends[1]};
}

}  // namespace llamesh::tokenizer
