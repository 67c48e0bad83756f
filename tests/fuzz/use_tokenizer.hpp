#pragma once

#include <string>
#include <string_view>

#include "answer.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::test {

inline constexpr std::string_view tricky_texts[] = {
    "", "In the beginning God created the heaven and the earth.",
    "don't  \r\n\t 12345 \u00e9\u4f60\U0001f600", "<|endoftext|> <|mask|>  \xff\xc3",
    "    \n\n  aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};

/// Tokenizes some texts; ends the program on an impossible result.
inline void use(const tokenizer::Tokenizer& tokenizer) {
  for (const auto text : tricky_texts) {
    const auto ids = tokenizer.encode(text);
    for (const auto id : ids)
      expect(id >= 0 && id < tokenizer.vocab_size(), "an id outside the vocabulary");
    tokenizer::TextStream stream(tokenizer);
    for (const auto id : ids) stream.push(id);
    stream.finish();
    tokenizer.decode(ids);
  }
  tokenizer.decode(tokenizer.prefix_ids());
  tokenizer.decode(tokenizer.suffix_ids());
}

/// Opens a tokenizer with `open` and uses it: the answer is a working one, or a one-line user
/// error.
template <class Open>
void open_and_use(const Open& open) {
  expect_an_answer([&] { use(*open()); });
}

}  // namespace llamesh::test
