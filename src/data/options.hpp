#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace llamesh::data {

/// What the data files hold.
enum class Format : std::uint8_t {
  text,    ///< plain text, cut into tokens by the tokenizer
  tokens,  ///< token ids: llm.c's .bin with its header, or headerless numbers
};

/// In which order the sequences of the training data are seen.
enum class Order : std::uint8_t {
  shuffled,    ///< a new permutation every epoch, a function of seed and epoch only
  sequential,  ///< as they lie in the files, again from the start after the last
};

/// The integers of headerless token files (little-endian).
enum class TokenDtype : std::uint8_t {
  from_header,  ///< `auto`: the file must have llm.c's header, which says it
  uint16,
  uint32,
};

/// `data:` of the inputs.
struct DataOptions {
  std::vector<std::string> train;       ///< files, read as one stream in this order
  std::vector<std::string> validation;  ///< empty: no validation
  Format format = Format::text;
  std::string tokenizer = "byte";      ///< for text: what open_tokenizer takes
  std::int64_t sequence_length = 512;  ///< tokens
  Order order = Order::shuffled;
  TokenDtype token_dtype = TokenDtype::from_header;
};

}  // namespace llamesh::data
