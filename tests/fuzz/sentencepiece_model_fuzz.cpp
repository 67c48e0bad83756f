// For any SentencePiece model, the answer is a working tokenizer or a user error.
#include <cstddef>
#include <cstdint>
#include <string>

#include "use_tokenizer.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  llamesh::test::open_and_use(
      [&] { return llamesh::tokenizer::parse_sentencepiece("fuzzed", bytes); });
  return 0;
}
