#include "data/data_files.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/text.hpp"
#include "core/utf8.hpp"
#include "data/foreign_data.hpp"
#include "data/jsonl.hpp"
#include "data/loss_mask.hpp"
#include "data/megatron.hpp"
#include "data/token_ids.hpp"

namespace llamesh::data {
namespace {

constexpr std::size_t max_head_bytes = 64 << 10;
constexpr const char* raw_ids_advice =
    "if it holds only token ids, say their type (data.token_dtype, --token-dtype): uint16 or "
    "uint32";

/// First bytes of a file.
struct FileHead {
  std::string bytes;
  bool is_whole_file;
};

FileHead read_head(const std::string& path) {
  const auto file = Descriptor::to_read(path);
  std::string bytes(max_head_bytes, '\0');
  const auto count = file.read_some(0, bytes.data(), std::ssize(bytes));
  validate(count > 0, "'{}' is empty", path);
  bytes.resize(static_cast<std::size_t>(count));
  return {std::move(bytes), file.bytes() <= count};
}

/// Returns the position of the first byte that is not UTF-8 text.
std::optional<std::size_t> first_binary_byte(const FileHead& head) {
  const std::string_view bytes = head.bytes;
  const auto nul = bytes.find('\0');
  const auto valid = valid_utf8_prefix(bytes);
  if (nul < valid) return nul;
  const auto rest = bytes.substr(valid);
  const bool cut = !head.is_whole_file && unfinished_utf8(rest) == rest.size();
  if (rest.empty() || cut) return std::nullopt;
  return valid;
}

/// Returns advice for a file that begins with these bytes.
std::string_view advice_on(std::string_view bytes) {
  using namespace std::string_view_literals;
  constexpr std::pair<std::string_view, std::string_view> known[] = {
      {"\x1f\x8b"sv, "it is compressed by gzip; decompress it"},
      {"\x28\xb5\x2f\xfd"sv, "it is compressed by zstd; decompress it"},
      {"\xfd\x37zXZ"sv, "it is compressed by xz; decompress it"},
      {"BZh"sv, "it is compressed by bzip2; decompress it"},
      {"PK\x03\x04"sv, "it is a ZIP archive; unpack it"},
      {"\xff\xfe"sv, "it looks like UTF-16; convert it (iconv -f UTF-16 -t UTF-8)"},
      {"\xfe\xff"sv, "it looks like UTF-16; convert it (iconv -f UTF-16 -t UTF-8)"},
  };
  const auto* found = std::ranges::find_if(
      known, [&](const auto& entry) { return bytes.starts_with(entry.first); });
  return found == std::end(known) ? std::string_view(raw_ids_advice) : found->second;
}

/// Returns true if the bytes may be text in an 8-bit encoding: token ids have small bytes, too.
bool is_eight_bit_text(std::string_view bytes) {
  return std::ranges::all_of(bytes, [](unsigned char c) {
    return c >= 0x20 || c == '\n' || c == '\r' || c == '\t' || c == '\f';
  });
}

/// Returns advice for a file that is not UTF-8.
std::string advice_on(const std::string& path, std::string_view bytes) {
  if (auto advice = advice_on_table(path, bytes); !advice.empty()) return advice;
  const auto advice = advice_on(bytes);
  if (advice != raw_ids_advice || path.ends_with(".bin") || !is_eight_bit_text(bytes))
    return std::string(advice);
  return fmt::format("if it is Latin-1, convert it: iconv -f ISO-8859-1 -t UTF-8 {} > {}",
                     shell_word(path), shell_word(path + ".utf8"));
}

void check_text(const std::string& path, const FileHead& head) {
  if (const auto at = first_binary_byte(head))
    fail(ExitCode::bad_input, "'{}' is not UTF-8 text (byte {} is {:#04x}): {}", path, *at,
         static_cast<unsigned char>(head.bytes[*at]), advice_on(path, head.bytes));
  validate(!path.ends_with(".bin") && !path.ends_with(".idx"),
           "'{}' is named as a token file but has no header of llm.c or Megatron-LM; {}; if it is "
           "text, rename it",
           path, raw_ids_advice);
}

bool is_token_file(const FileHead& head) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(head.bytes.data());
  return data::is_token_file(std::span(bytes, head.bytes.size()));
}

std::string_view name_of(Format format) {
  switch (format) {
    case Format::jsonl:
      return "JSON records";
    case Format::tokens:
      return "token ids";
    case Format::megatron:
      return "a Megatron-LM pair";
    default:
      return "text";
  }
}

}  // namespace

bool is_megatron(const std::string& path) {
  const auto stem = megatron_stem(path);
  std::error_code ignored;
  if (stem == path && std::filesystem::exists(path, ignored)) return false;
  const auto index = stem + ".idx";
  return std::filesystem::is_regular_file(index, ignored) &&
         is_megatron_index(read_head(index).bytes);
}

Format format_of(const std::string& path, TokenDtype ids) {
  if (is_megatron(path)) return Format::megatron;
  validate(!is_loss_mask(path), "'{}' is a loss mask; name the token file beside it", path);
  refuse_hub_name(path);
  const auto head = read_head(path);
  if (is_token_file(head)) return Format::tokens;
  if (has_json_name(path)) return Format::jsonl;
  if (ids != TokenDtype::from_header) return Format::tokens;
  check_text(path, head);
  return Format::text;
}

Format format_of(std::span<const std::string> files, TokenDtype ids) {
  expects(!files.empty(), "format of no file");
  const auto first = format_of(files.front(), ids);
  for (const auto& file : files.subspan(1)) {
    const auto other = format_of(file, ids);
    validate(other == first, "'{}' holds {} but '{}' holds {}; all files of a run have one format",
             files.front(), name_of(first), file, name_of(other));
  }
  return first;
}

void check_text(const std::string& path) {
  validate(!has_json_name(path),
           "'{}' is named as JSON records; leave data.format out or set it to jsonl, or rename the "
           "file to train on its JSON as plain text",
           path);
  const auto head = read_head(path);
  validate(!is_token_file(head), "'{}' holds token ids; leave data.format out or set it to tokens",
           path);
  check_text(path, head);
}

}  // namespace llamesh::data
