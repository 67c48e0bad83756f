#include "core/printable.hpp"

#include <fmt/format.h>

#include <iterator>

namespace llamesh {
namespace {

constexpr std::size_t longest_excerpt = 120;

unsigned char byte_at(std::string_view text, std::size_t i) {
  return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
}

/// Bytes of the control character that begins at `i`; 0: none does.
std::size_t control_bytes(std::string_view text, std::size_t i) {
  const auto first = byte_at(text, i);
  if (first < 0x20 || first == 0x7f) return 1;
  const auto second = byte_at(text, i + 1);
  return first == 0xc2 && second >= 0x80 && second < 0xa0 ? 2 : 0;
}

bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0U) == 0x80U;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string shown;
  for (std::size_t i = 0; i < text.size();) {
    auto escaped = control_bytes(text, i);
    if (escaped == 0) shown += text[i++];
    for (; escaped > 0; --escaped)
      fmt::format_to(std::back_inserter(shown), "\\x{:02x}", byte_at(text, i++));
  }
  return shown;
}

std::string excerpt(std::string_view text) {
  if (text.size() <= longest_excerpt) return printable(text);
  auto end = longest_excerpt;
  while (end > longest_excerpt - 3 && continues_character(text[end])) --end;
  return printable(text.substr(0, end)) + "...";
}

}  // namespace llamesh
