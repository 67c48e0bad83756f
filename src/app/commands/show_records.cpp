#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "app/commands/commands.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "data/encode_jsonl.hpp"
#include "data/mapped_file.hpp"

namespace llamesh::app {
namespace {

/// Returns a token's text. Control characters except line ends and tabs are written as \xHH.
std::string shown_token(const tokenizer::Tokenizer& tokenizer, std::string_view text,
                        std::int32_t id) {
  if (text.empty() && tokenizer.bytes_of(id).empty()) return fmt::format("<{}>", id);
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of("\n\t", at), text.size());
    shown += printable(text.substr(at, end - at));
    if (end < text.size()) shown += text[end];
    at = end + 1;
  }
  return shown;
}

/// Returns the document's text with marks around each run of tokens in the loss.
std::string marked_text(const tokenizer::Tokenizer& tokenizer,
                        const data::EncodedDocument& document, bool colors) {
  const auto& edges = document.masked_ranges;
  std::string shown;
  tokenizer::TextStream text(tokenizer);
  bool in_loss = false;
  const auto mark = [&](bool now) {
    if (now == in_loss) return;
    in_loss = now;
    if (colors)
      shown += now ? "\033[1;32m" : "\033[0m";
    else
      shown += now ? "{+" : "+}";
  };
  for (std::size_t i = 0; i < document.ids.size(); ++i) {
    const auto passed = std::ranges::upper_bound(edges, static_cast<std::int64_t>(i));
    mark((passed - edges.begin()) % 2 == 0);
    shown += shown_token(tokenizer, text.push(document.ids[i]), document.ids[i]);
  }
  shown += printable(text.finish());
  mark(false);
  return shown;
}

std::int64_t masked_tokens(const data::EncodedDocument& document) {
  std::int64_t masked = 0;
  for (std::size_t i = 0; i + 1 < document.masked_ranges.size(); i += 2)
    masked += document.masked_ranges[i + 1] - document.masked_ranges[i];
  return masked;
}

}  // namespace

void show_records(const TokenizeArguments& arguments, const std::vector<std::string>& files) {
  const auto opened = tokenizer::open_tokenizer(arguments.tokenizer);
  const tokenizer::Tokenizer& tokenizer = *opened;
  const auto special = data::document_tokens(tokenizer, arguments.data_options());
  const bool colors = ::isatty(STDOUT_FILENO) == 1;
  for (const std::string& path : files) {
    const data::MappedFile file(path);
    data::JsonRecords records(
        {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path);
    std::string_view record;
    for (int i = 0; i < arguments.show && records.next(record); ++i) {
      const auto where = records.where();
      const auto document = data::encode(
          tokenizer, special, data::parse_jsonl(record, where, special.conversations), where);
      const std::int64_t tokens = std::ssize(document.ids);
      fmt::print("{}: {} tokens, {} in the loss\n{}\n\n", where, tokens,
                 tokens - masked_tokens(document), marked_text(tokenizer, document, colors));
    }
    file.check();
  }
}

}  // namespace llamesh::app
