// Whatever stands in a tokenizer.json, the answer is a tokenizer that works or a user error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "core/error.hpp"
#include "data/tokenizer.hpp"

namespace {

constexpr std::string_view texts[] = {
    "", "In the beginning God created the heaven and the earth.",
    "don't  \r\n\t 12345 \u00e9\u4f60\U0001f600", "<|endoftext|> <|mask|>  \xff\xc3",
    "    \n\n  aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};

void use(const llamesh::data::Tokenizer& tokenizer) {
  for (const auto text : texts) {
    const auto ids = tokenizer.encode(text);
    for (const auto id : ids)
      if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
    llamesh::data::TextStream stream(tokenizer);
    for (const auto id : ids) stream.push(id);
    stream.finish();
    tokenizer.decode(ids);
  }
  tokenizer.decode(tokenizer.opening());
  tokenizer.decode(tokenizer.closing());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  try {
    use(*llamesh::data::parse_hugging_face("fuzzed", json, ""));
  } catch (const llamesh::Error& error) {
    // A user error on one line; anything else is a finding.
    const bool sound = error.code() == llamesh::ExitCode::bad_input;
    if (!sound || std::strchr(error.what(), '\n') != nullptr) std::abort();
  }
  return 0;
}
