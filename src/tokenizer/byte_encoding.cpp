#include "tokenizer/tokenizer_json.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>

#include "core/error.hpp"
#include "core/utf8.hpp"

namespace llamesh::tokenizer {
namespace {

/// Returns true for bytes that map to themselves; the others map to U+0100 and up (bytes_to_unicode
/// in openai/gpt-2, src/encoder.py).
bool maps_to_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

const std::array<std::uint32_t, 256>& characters_of_bytes() {
  static const auto table = [] {
    std::array<std::uint32_t, 256> characters{};
    std::uint32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte)
      characters[byte] = maps_to_itself(byte) ? byte : next++;
    return characters;
  }();
  return table;
}

std::string bytes_of_characters(const std::string& token) {
  const auto& characters = characters_of_bytes();
  std::string bytes;
  std::string_view rest = token;
  while (!rest.empty()) {
    const std::size_t length = utf8_length(rest);
    if (length == 0) return token;
    const auto found = std::ranges::find(characters, code_point(rest.substr(0, length)));
    if (found == characters.end()) return token;  // not a byte-level token: taken literally
    bytes += static_cast<char>(found - characters.begin());
    rest.remove_prefix(length);
  }
  return bytes;
}

/// Parses <0xHH>.
std::optional<char> byte_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(value);
}

std::optional<std::int32_t> find_token(const TokenizerFile& file, std::string_view token) {
  for (const AddedToken& added : file.added)
    if (added.content == token) return added.id;
  const auto found = file.vocabulary.find(std::string(token));
  return found == file.vocabulary.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::int32_t> special_token(const std::string& name, const TokenizerFile& file,
                                          const std::optional<std::string>& stated,
                                          std::initializer_list<std::string_view> usual) {
  if (stated) {
    const auto id = find_token(file, *stated);
    validate(id.has_value(), "{}: the files beside it name an empty token as BOS or EOS; remove it",
             name);
    return id;
  }
  for (const auto token : usual)
    if (const auto id = find_token(file, token)) return id;
  return std::nullopt;
}

}  // namespace

std::string token_of_byte(ByteEncoding encoding, std::uint8_t byte) {
  return encoding == ByteEncoding::byte_level ? to_utf8(characters_of_bytes()[byte])
                                              : fmt::format("<0x{:02X}>", byte);
}

std::string bytes_of_token(ByteEncoding encoding, const std::string& token) {
  if (encoding == ByteEncoding::byte_level) return bytes_of_characters(token);
  if (const auto byte = byte_token(token)) return {*byte};
  constexpr std::string_view symbol = "\u2581";
  std::string bytes;
  std::size_t at = 0;
  for (std::size_t end = token.find(symbol); end != token.npos; end = token.find(symbol, at)) {
    bytes.append(token, at, end - at).push_back(' ');
    at = end + symbol.size();
  }
  bytes.append(token, at);
  return bytes;
}

Vocabulary make_vocabulary(const std::string& name, const TokenizerFile& file,
                           const TokenizerConfig& config) {
  std::int32_t largest = -1;
  for (const auto& entry : file.vocabulary) largest = std::max(largest, entry.second);
  for (const AddedToken& token : file.added) largest = std::max(largest, token.id);
  Vocabulary vocabulary;
  vocabulary.bytes.resize(static_cast<std::size_t>(std::int64_t{largest} + 1));
  for (const auto& [token, id] : file.vocabulary)
    vocabulary.bytes[static_cast<std::size_t>(id)] = bytes_of_token(file.byte_encoding, token);
  // The library's decoders read added tokens, too: Gemma's U+2581 U+2581 is two spaces.
  for (const AddedToken& token : file.added)
    vocabulary.bytes[static_cast<std::size_t>(token.id)] =
        bytes_of_token(file.byte_encoding, token.content);
  vocabulary.bos = special_token(name, file, config.bos, {"<|begin_of_text|>", "<s>"});
  vocabulary.eos =
      special_token(name, file, config.eos, {"<|end_of_text|>", "</s>", "<|endoftext|>"});
  vocabulary.prefix_ids = file.prefix_ids;
  vocabulary.suffix_ids = file.suffix_ids;
  if (file.byte_encoding == ByteEncoding::byte_fallback && file.prefix_space != PrefixSpace::never)
    vocabulary.dropped_spaces = 1;
  return vocabulary;
}

bool begins_visibly(std::string_view text) {
  const std::size_t length = utf8_length(text);
  if (length == 0) return false;
  const std::uint32_t code = code_point(text.substr(0, length));
  if (code < 0x80) return code > 0x20 && code != 0x7F;
  // From Latin letters to the last ideographs and Hangul, without spaces, joiners and combining
  // marks.
  return code >= 0xC0 && code < 0xD800 && !(code >= 0x300 && code < 0x370) && code != 0x1680 &&
         !(code >= 0x180B && code <= 0x180F) && !(code >= 0x2000 && code < 0x2070) &&
         code != 0x2581 && code != 0x3000;
}

}  // namespace llamesh::tokenizer
