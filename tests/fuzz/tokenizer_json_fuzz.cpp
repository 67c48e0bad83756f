// For any tokenizer.json and files beside it, the answer is a working tokenizer or a user error.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "use_tokenizer.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // The record separator, which no JSON contains, is between the files.
  std::array<std::string, 4> files;
  std::size_t file = 0;
  for (std::size_t i = 0; i < size; ++i)
    if (data[i] == 0x1E && file + 1 < files.size())
      ++file;
    else
      files[file] += static_cast<char>(data[i]);
  llamesh::test::open_and_use([&] {
    return llamesh::tokenizer::parse_hugging_face("fuzzed", files[0],
                                                  {files[1], files[2], files[3]});
  });
  return 0;
}
