#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "app/commands/commands.hpp"
#include "core/error.hpp"
#include "data/encode_jsonl.hpp"
#include "data/mapped_file.hpp"
#include "data/marked_text.hpp"

namespace llamesh::app {
namespace {

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
                 tokens - masked_tokens(document),
                 colors ? data::marked_text(tokenizer, document, "\033[1;32m", "\033[0m")
                        : data::marked_text(tokenizer, document));
    }
    file.check();
  }
}

}  // namespace llamesh::app
