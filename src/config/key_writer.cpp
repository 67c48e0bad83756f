#include "config/key_writer.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "config/include.hpp"
#include "config/tree.hpp"

namespace llamesh::config {
namespace {

bool is_plain(std::string_view word) {
  const auto alphanumeric = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  return !is_null_word(word) && (alphanumeric(word[0]) || word[0] == '/' || word[0] == '_') &&
         std::ranges::all_of(word, [&](char c) {
           return alphanumeric(c) || std::string_view("/_.-+").find(c) != std::string_view::npos;
         });
}

}  // namespace

std::string yaml_word(std::string_view word) {
  if (is_plain(word)) return std::string(word);
  std::string text = "\"";
  for (const char c : word) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      text += {'\\', c};
    else if (code < 0x20 || code == 0x7f)
      text += fmt::format("\\x{:02x}", code);
    else
      text += c;
  }
  return text + '"';
}

void KeyWriter::key(std::string_view name, const std::vector<std::int64_t>& value, Range) {
  line(name, fmt::format(" [{}]", fmt::join(value, ", ")));
}

void KeyWriter::key(std::string_view name, const std::vector<double>& value, Range) {
  line(name, fmt::format(" [{}]", fmt::join(value, ", ")));
}

void KeyWriter::key(std::string_view name, const std::vector<std::string>& value) {
  std::vector<std::string> words;
  for (const std::string& word : value) words.push_back(yaml_word(word));
  line(name, fmt::format(" [{}]", fmt::join(words, ", ")));
}

void KeyWriter::named_words(std::string_view name, const std::vector<train::ValidationSet>& value) {
  if (value.empty()) return line(name, " {}");
  section(name, [&] {
    for (const auto& [key_name, words] : value) key(yaml_word(key_name), words);
  });
}

void KeyWriter::key(std::string_view name, sharding::ReshardAfterForward value) {
  using enum sharding::ReshardAfterForward;
  line(name, value == by_strategy ? " auto"
             : value == yes       ? " true"
             : value == no        ? " false"
                                  : fmt::format(" {}", static_cast<int>(value)));
}

void KeyWriter::key(std::string_view name, const std::optional<sharding::Spec>& value) {
  if (!value) return line(name, " null");
  if (value->entries.empty()) return line(name, " {}");
  section(name, [&] {
    for (const auto& entry : value->entries)
      line(yaml_word(entry.name), ' ' + yaml_dims(entry.dims));
  });
}

void KeyWriter::pairs(std::string_view name, const std::vector<std::pair<double, double>>& value,
                      Range) {
  std::string text;
  for (const auto& [first, second] : value)
    text += fmt::format("{}[{:.6g}, {:.6g}]", text.empty() ? "" : ", ", first, second);
  if (!value.empty()) line(name, fmt::format(" [{}]", text));
}

}  // namespace llamesh::config
