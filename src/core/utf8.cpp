#include "core/utf8.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/error.hpp"

namespace llamesh {
namespace {

unsigned byte_at(std::string_view text, std::size_t i) {
  return static_cast<unsigned char>(text[i]);
}

bool continues(unsigned byte) {
  return (byte & 0xC0U) == 0x80U;
}

/// Returns a character's length from its first byte; 0 if that byte cannot begin one.
std::size_t announced_length(unsigned lead) {
  if (lead < 0x80U) return 1;
  if (lead < 0xC2U) return 0;
  if (lead < 0xE0U) return 2;
  if (lead < 0xF0U) return 3;
  return lead < 0xF5U ? 4 : 0;
}

/// Returns true if `second` may follow `lead` (RFC 3629, section 4).
bool second_fits(unsigned lead, unsigned second) {
  if (!continues(second)) return false;
  if (lead == 0xE0U) return second >= 0xA0U;
  if (lead == 0xEDU) return second < 0xA0U;
  if (lead == 0xF0U) return second >= 0x90U;
  return lead != 0xF4U || second < 0x90U;
}

/// Returns the number of bytes at the start of `text`, which begins with no valid character, that
/// one U+FFFD replaces: as many as begin some character, else one.
std::size_t maximal_subpart(std::string_view text) {
  const std::size_t length = std::min(announced_length(byte_at(text, 0)), text.size());
  if (length < 2 || !second_fits(byte_at(text, 0), byte_at(text, 1))) return 1;
  std::size_t count = 2;
  while (count < length && continues(byte_at(text, count))) ++count;
  return count;
}

}  // namespace

std::size_t utf8_length(std::string_view text) {
  const unsigned lead = byte_at(text, 0);
  const std::size_t length = announced_length(lead);
  if (length <= 1) return length;
  if (length > text.size() || !second_fits(lead, byte_at(text, 1))) return 0;
  for (std::size_t i = 2; i < length; ++i)
    if (!continues(byte_at(text, i))) return 0;
  return length;
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (text.size() - at >= 8) {
      std::uint64_t eight;
      std::memcpy(&eight, text.data() + at, 8);
      if ((eight & 0x8080808080808080U) == 0) {  // eight ASCII characters
        at += 8;
        continue;
      }
    }
    const std::size_t length = utf8_length(text.substr(at));
    if (length == 0) break;
    at += length;
  }
  return at;
}

std::uint32_t code_point(std::string_view character) {
  const unsigned lead = byte_at(character, 0);
  if (character.size() == 1) return lead;
  std::uint32_t code = lead & (0x7FU >> character.size());
  for (std::size_t i = 1; i < character.size(); ++i)
    code = code << 6 | (byte_at(character, i) & 0x3FU);
  return code;
}

std::string to_utf8(std::uint32_t code) {
  const auto tail = [code](unsigned shift) {
    return static_cast<char>(0x80U | ((code >> shift) & 0x3FU));
  };
  if (code < 0x80U) return {static_cast<char>(code)};
  if (code < 0x800U) return {static_cast<char>(0xC0U | code >> 6), tail(0)};
  if (code < 0x10000U) return {static_cast<char>(0xE0U | code >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0U | code >> 18), tail(12), tail(6), tail(0)};
}

std::size_t unfinished_utf8(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const std::string_view end = text.substr(text.size() - back);
    const unsigned lead = byte_at(end, 0);
    if (continues(lead)) continue;
    const bool begins = announced_length(lead) > back;
    return begins && (back == 1 || second_fits(lead, byte_at(end, 1))) ? back : 0;
  }
  return 0;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t valid = valid_utf8_prefix(text);
    out += text.substr(0, valid);
    text.remove_prefix(valid);
    if (text.empty()) break;
    out += "\xEF\xBF\xBD";
    text.remove_prefix(maximal_subpart(text));
  }
  return out;
}

bool is_surely_nfc(std::string_view text) {
  constexpr unsigned lead_of_first_combining_mark = 0xCC;  // U+0300
  return std::ranges::all_of(
      text, [](char c) { return static_cast<unsigned char>(c) < lead_of_first_combining_mark; });
}

std::string to_nfc(std::string_view text) {
  utf8proc_uint8_t* made = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), std::ssize(text), &made,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, &std::free);
  expects(length >= 0, "utf8proc: {}", utf8proc_errmsg(length));
  return {reinterpret_cast<const char*>(made), static_cast<std::size_t>(length)};
}

bool is_white_space(std::uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

}  // namespace llamesh
