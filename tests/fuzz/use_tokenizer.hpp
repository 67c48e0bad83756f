#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "core/error.hpp"
#include "data/tokenizer.hpp"

namespace llamesh::test {

inline constexpr std::string_view tricky_texts[] = {
    "", "In the beginning God created the heaven and the earth.",
    "don't  \r\n\t 12345 \u00e9\u4f60\U0001f600", "<|endoftext|> <|mask|>  \xff\xc3",
    "    \n\n  aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};

/// Tokenizes some texts; what cannot be is the end of the program.
inline void use(const data::Tokenizer& tokenizer) {
  for (const auto text : tricky_texts) {
    const auto ids = tokenizer.encode(text);
    for (const auto id : ids)
      if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
    data::TextStream stream(tokenizer);
    for (const auto id : ids) stream.push(id);
    stream.finish();
    tokenizer.decode(ids);
  }
  tokenizer.decode(tokenizer.opening());
  tokenizer.decode(tokenizer.closing());
}

/// Opens a tokenizer by `open` and uses it: the answer is one that works, or a user error on one
/// line.
template <class Open>
void open_and_use(const Open& open) {
  try {
    use(*open());
  } catch (const Error& error) {
    const bool sound = error.code() == ExitCode::bad_input;
    if (sound && std::strchr(error.what(), '\n') == nullptr) return;
    std::fprintf(stderr, "%s\n", error.what());
    std::abort();
  }
}

}  // namespace llamesh::test
