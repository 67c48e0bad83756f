// Translates a tokenizer.json regular expression to PCRE2 syntax.
#include <algorithm>
#include <array>
#include <cctype>

#include "core/error.hpp"
#include "tokenizer/pattern.hpp"

namespace llamesh::tokenizer {
namespace {

/// Unicode's White_Space, for use in a class. PCRE2's \s also includes U+180E.
constexpr std::string_view white_space = R"(\x{9}-\x{D}\x{85}\p{Z})";
constexpr std::string_view categories[] = {"L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M",  "Mc", "Me",
                                           "Mn", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Pe",
                                           "Pf", "Pi", "Po", "Ps", "S",  "Sc", "Sk", "Sm", "So",
                                           "Z",  "Zl", "Zp", "Zs", "C",  "Cc", "Cf"};

class Translator {
 public:
  Translator(const std::string& where, std::string_view regex) : where_(where), regex_(regex) {}

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
      case '$':
        if (!in_class_) refuse(regex_.substr(at_, 1));
        return copy(1);
      case '.':
        if (in_class_) return copy(1);
        out_ += "[^\\n]";
        ++at_;
        return;
      case '&':
        if (in_class_ && next_is("&&")) refuse("&&");
        return copy(1);
      default:
        return copy(1);
    }
  }

  void open_class() {
    in_class_ = true;
    copy(1);
    if (next_is("^")) copy(1);
    if (next_is("]")) refuse("] at the start of a class");
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
    if (c == 'd') {
      out_ += "\\p{Nd}";
      at_ += 2;
      return;
    }
    if (c != 'r' && c != 'n' && c != 't' && std::ispunct(static_cast<unsigned char>(c)) == 0 &&
        c != ' ')
      refuse(regex_.substr(at_, 2));
    copy(2);
  }

  void space(bool negated) {
    if (in_class_ && negated) refuse("\\S in a class");
    if (in_class_)
      out_ += white_space;
    else
      out_ += fmt::format("[{}{}]", negated ? "^" : "", white_space);
    at_ += 2;
  }

  void property() {
    const std::size_t end = regex_.find('}', at_);
    if (at_ + 2 >= regex_.size() || regex_[at_ + 2] != '{' || end == regex_.npos)
      refuse(regex_.substr(at_, 2));
    const auto name = regex_.substr(at_ + 3, end - at_ - 3);
    if (std::ranges::find(categories, name) == std::end(categories))
      refuse(regex_.substr(at_, end + 1 - at_));
    copy(end + 1 - at_);
  }

  const std::string& where_;
  std::string_view regex_;
  std::size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

std::string to_pcre2(const std::string& where, std::string_view regex) {
  return Translator(where, regex).translate();
}

}  // namespace llamesh::tokenizer
