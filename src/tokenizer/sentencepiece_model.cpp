#include "tokenizer/sentencepiece_model.hpp"

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "core/error.hpp"

namespace llamesh::tokenizer {
namespace {

/// A protobuf field in a length-delimited message: number, and value or bytes.
struct Field {
  std::uint64_t number;
  std::uint64_t value;
  std::string_view bytes;
};

std::uint64_t take_varint(std::string_view& message) {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64 && !message.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(message.front());
    message.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7FU} << shift;
    if (byte < 0x80) break;
  }
  return value;
}

/// Returns the next field, or nothing at the end.
std::optional<Field> take_field(std::string_view& message) {
  if (message.empty()) return std::nullopt;
  const std::uint64_t key = take_varint(message);
  Field field{key >> 3, 0, {}};
  const auto kind = key & 7U;
  if (kind == 0) {
    field.value = take_varint(message);
    return field;
  }
  // Start or end of a group, which has no length: read its fields as if outside it.
  if (kind == 3 || kind == 4) return field;
  const std::size_t length = kind == 1 ? 8 : kind == 5 ? 4 : take_varint(message);
  field.bytes = message.substr(0, length);
  message.remove_prefix(field.bytes.size());
  return field;
}

/// One double-array trie unit in Darts-clone's layout (darts.h, DoubleArrayUnit).
struct TrieUnit {
  std::uint32_t bits;
  bool holds_value() const { return (bits >> 31) != 0; }
  bool has_leaf() const { return ((bits >> 8) & 1U) != 0; }
  std::uint32_t value() const { return bits & 0x7FFFFFFFU; }
  std::uint32_t offset() const { return (bits >> 10) << ((bits & (1U << 9)) >> 6); }
};

/// Returns true if every search step stays within the trie, and every result within the texts after
/// it.
bool is_closed(std::string_view trie, std::string_view texts) {
  std::vector<TrieUnit> units(trie.size() / sizeof(TrieUnit));
  if (units.empty() || units.size() % 256 != 0 || texts.empty() || texts.back() != 0) return false;
  std::memcpy(units.data(), trie.data(), units.size() * sizeof(TrieUnit));
  for (std::size_t i = 0; i < units.size(); ++i) {
    // No search continues from a value; the root is not tested for being one.
    if (i > 0 && units[i].holds_value()) continue;
    const std::size_t next = i ^ units[i].offset();  // and its 256-unit block
    if (next >= units.size()) return false;
    if (units[i].has_leaf() && units[next].value() >= texts.size()) return false;
  }
  return true;
}

/// precompiled_charsmap: trie size in bytes as uint32, trie, zero-terminated texts.
bool is_sound(std::string_view table) {
  std::uint32_t trie_bytes = 0;
  if (table.size() < sizeof(trie_bytes)) return false;
  std::memcpy(&trie_bytes, table.data(), sizeof(trie_bytes));
  table.remove_prefix(sizeof(trie_bytes));
  return trie_bytes <= table.size() &&
         is_closed(table.substr(0, trie_bytes), table.substr(trie_bytes));
}

}  // namespace

bool is_bpe(std::string_view model) {
  constexpr std::uint64_t trainer_spec = 2, model_type = 3;
  std::uint64_t type = 1;  // Unigram
  while (const auto field = take_field(model)) {
    if (field->number != trainer_spec) continue;
    std::string_view trainer = field->bytes;
    while (const auto inner = take_field(trainer))
      if (inner->number == model_type) type = inner->value;
  }
  return type == 2;
}

void check_normalization(const std::string& path, std::string_view model) {
  constexpr std::uint64_t normalizer_spec = 3, denormalizer_spec = 5, precompiled_charsmap = 2;
  while (const auto field = take_field(model)) {
    if (field->number != normalizer_spec && field->number != denormalizer_spec) continue;
    std::string_view normalizer = field->bytes;
    while (const auto inner = take_field(normalizer))
      validate(
          inner->number != precompiled_charsmap || inner->bytes.empty() || is_sound(inner->bytes),
          "'{}' is damaged: its table of character normalization leads out of itself", path);
  }
}

}  // namespace llamesh::tokenizer
