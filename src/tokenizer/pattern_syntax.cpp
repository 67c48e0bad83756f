// Translates a tokenizer.json regular expression to PCRE2 syntax.
#include <algorithm>
#include <array>
#include <cctype>

#include "core/error.hpp"
#include "tokenizer/newer_characters.hpp"
#include "tokenizer/pattern.hpp"

namespace llamesh::tokenizer {
namespace {

/// Unicode's White_Space, for use in a class. PCRE2's \s also includes U+180E.
constexpr std::string_view white_space = R"(\x{9}-\x{D}\x{85}\p{Z})";
/// The script Han in Unicode 16. PCRE2's \p{Han} has the script extensions, too, and is older.
constexpr std::string_view han =
    R"(\x{2E80}-\x{2E99}\x{2E9B}-\x{2EF3}\x{2F00}-\x{2FD5}\x{3005}\x{3007}\x{3021}-\x{3029})"
    R"(\x{3038}-\x{303B}\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FA6D}\x{FA70}-\x{FAD9})"
    R"(\x{16FE2}-\x{16FE3}\x{16FF0}-\x{16FF1}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B739})"
    R"(\x{2B740}-\x{2B81D}\x{2B820}-\x{2CEA1}\x{2CEB0}-\x{2EBE0}\x{2EBF0}-\x{2EE5D})"
    R"(\x{2F800}-\x{2FA1D}\x{30000}-\x{3134A}\x{31350}-\x{323AF})";
/// Characters beside letters, marks and digits that Oniguruma has in words.
constexpr std::string_view other_word_characters =
    R"(\p{Nl}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149})"
    R"(\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
constexpr std::string_view categories[] = {"L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M",  "Mc", "Me",
                                           "Mn", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Pe",
                                           "Pf", "Pi", "Po", "Ps", "S",  "Sc", "Sk", "Sm", "So",
                                           "Z",  "Zl", "Zp", "Zs", "Cc", "Cf"};

class Translator {
 public:
  Translator(const std::string& where, std::string_view regex, Characters characters)
      : where_(where), regex_(regex), characters_(characters) {}

  std::string translate() {
    validate(regex_.size() <= 4096, "{}: a regular expression of {} bytes is too long", where_,
             regex_.size());
    while (at_ < regex_.size()) step();
    return out_;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail(ExitCode::bad_input, "{}: '{}' at byte {} of the regular expression '{}' is not supported",
         where_, what, at_, regex_);
  }

  bool next_is(std::string_view text) const { return regex_.substr(at_).starts_with(text); }
  void copy(std::size_t count) {
    out_ += regex_.substr(at_, count);
    at_ += count;
  }

  void step() {
    switch (regex_[at_]) {
      case '\\':
        return escape();
      case '[':
        return in_class_ ? refuse("[ in a class") : open_class();
      case ']':
        if (!in_class_) refuse("]");
        in_class_ = false;
        return copy(1);
      case '(':
        return in_class_ ? copy(1) : open_group();
      case '{':
        return in_class_ ? copy(1) : repetition();
      case '^':
        if (!in_class_) refuse("^");
        return copy(1);
      case '$':
        return in_class_ ? copy(1) : assertion(1, "(?![^\\n])");
      case '.':
        if (in_class_) return copy(1);
        out_ += "[^\\n]";
        ++at_;
        return;
      case '&':
        return in_class_ && next_is("&&") ? subtract() : copy(1);
      default:
        return copy(1);
    }
  }

  void open_class() {
    in_class_ = true;
    class_begin_ = out_.size();
    copy(next_is("[^") ? 2 : 1);
    if (next_is("]")) refuse("] at the start of a class");
  }

  /// Translates [a&&[^b]], from && on, to (?:(?![b])[a]): PCRE2 has no such classes.
  void subtract() {
    const std::string minuend = out_.substr(class_begin_);
    if (subtracts_ || minuend == "[" || minuend.starts_with("[^") || !next_is("&&[^") ||
        next_is("&&[^]"))
      refuse("&&");
    subtracts_ = true;
    at_ += 4;
    out_.resize(class_begin_);
    out_ += "(?:(?![";
    while (in_class_ && at_ < regex_.size()) step();
    if (!next_is("]")) refuse("&&");
    subtracts_ = false;
    ++at_;
    out_ += ")" + minuend + "])";
  }

  /// Replaces `count` characters that match no text.
  void assertion(std::size_t count, std::string_view translated) {
    at_ += count;
    for (const char c : {'*', '+', '?', '{'})
      if (at_ < regex_.size() && regex_[at_] == c) refuse(regex_.substr(at_, 1));
    out_ += translated;
  }

  void open_group() {
    for (const std::string_view known : {"(?:", "(?i:", "(?=", "(?!"})
      if (next_is(known)) return copy(known.size());
    // Here (* would begin a PCRE2 verb such as (*ACCEPT), with which an expression can match
    // nothing.
    if (next_is("(?") || next_is("(*")) refuse(regex_.substr(at_, 4));
    copy(1);
  }

  /// Copies {n}, {n,} or {n,m}. The suffixes allowed after it differ between the two libraries.
  void repetition() {
    const std::size_t end = regex_.find('}', at_);
    const auto inside = regex_.substr(at_ + 1, end == regex_.npos ? 0 : end - at_ - 1);
    const auto ok = [](char c) { return c == ',' || (c >= '0' && c <= '9'); };
    if (inside.empty() || inside.front() == ',' || !std::ranges::all_of(inside, ok) ||
        std::ranges::count(inside, ',') > 1)
      refuse("{");
    copy(inside.size() + 2);
    if (next_is("+") || next_is("?") || next_is("*")) refuse(regex_.substr(at_, 1));
  }

  void escape() {
    if (at_ + 1 >= regex_.size()) refuse("\\");
    const char c = regex_[at_ + 1];
    if (c == 'p' || c == 'P') return property();
    if (c == 's' || c == 'S') return space(c == 'S');
    if (c == 'd') return characters("\\p{Nd}" + newer("Nd"), false, 2);
    if (c == 'b' && !in_class_) return word_boundary();
    if (c != 'r' && c != 'n' && c != 't' && std::ispunct(static_cast<unsigned char>(c)) == 0 &&
        c != ' ')
      refuse(regex_.substr(at_, 2));
    copy(2);
  }

  void space(bool negated) {
    if (in_class_ && negated) refuse("\\S in a class");
    characters(white_space, negated, 2);
  }

  void property() {
    const std::size_t end = regex_.find('}', at_);
    if (at_ + 2 >= regex_.size() || regex_[at_ + 2] != '{' || end == regex_.npos)
      refuse(regex_.substr(at_, 2));
    const auto name = regex_.substr(at_ + 3, end - at_ - 3);
    const auto written = regex_.substr(at_, end + 1 - at_);
    const bool negated = regex_[at_ + 1] == 'P';
    if (std::ranges::find(categories, name) == std::end(categories) && name != "Han")
      refuse(written);
    if (in_class_ && negated) refuse("\\P in a class");
    if (name == "Han") return characters(han, negated, written.size());
    if (characters_ == Characters::older) return copy(written.size());
    characters(fmt::format("\\p{{{}}}{}", name, newer(name)), negated, written.size());
  }

  std::string newer(std::string_view category) const {
    return characters_ == Characters::newer ? newer_characters(category) : "";
  }

  void word_boundary() {
    const std::string word =
        fmt::format("[\\p{{L}}\\p{{M}}\\p{{Nd}}{}{}{}{}]", other_word_characters, newer("L"),
                    newer("M"), newer("Nd"));
    assertion(2, fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word));
  }

  /// Replaces `count` characters by what stands for them in a class.
  void characters(std::string_view members, bool negated, std::size_t count) {
    if (in_class_)
      out_ += members;
    else
      out_ += fmt::format("[{}{}]", negated ? "^" : "", members);
    at_ += count;
  }

  const std::string& where_;
  std::string_view regex_;
  Characters characters_;
  std::size_t at_ = 0;
  std::size_t class_begin_ = 0;  ///< in out_
  bool in_class_ = false;
  bool subtracts_ = false;
  std::string out_;
};

}  // namespace

std::string to_pcre2(const std::string& where, std::string_view regex, Characters characters) {
  return Translator(where, regex, characters).translate();
}

}  // namespace llamesh::tokenizer
