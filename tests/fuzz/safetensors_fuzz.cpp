// For any safetensors file, the answer is tensors that lie within it, or a user error. Each input
// is used twice: as a whole file, and as a header line from which the target builds a file, with
// the rest as its data, so that the fuzzer need not guess the header length.
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "answer.hpp"
#include "checkpoint/models/safetensors.hpp"

namespace {

using llamesh::checkpoint::StoredTensor;
using llamesh::test::expect;

void parse(const std::string& file) {
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(file.data()), file.size());
  auto tensors = llamesh::checkpoint::parse_safetensors(bytes, "fuzzed");
  std::int64_t sum = 0;
  for (const auto& tensor : tensors) {
    expect(
        tensor.begin >= 8 && tensor.bytes >= 0 && tensor.begin + tensor.bytes <= std::ssize(file),
        "a tensor lies outside the file");
    expect(tensor.numel() >= 0 && tensor.numel() <= 8 * tensor.bytes, "elements without bytes");
    sum += tensor.bytes;
  }
  expect(sum <= std::ssize(file), "tensors overlap");

  // Tensors that were read can be written, and read back the same.
  const auto header = llamesh::checkpoint::safetensors_header(tensors);
  const std::string again = header + std::string(static_cast<std::size_t>(sum), '\0');
  const auto read = llamesh::checkpoint::parse_safetensors(
      {reinterpret_cast<const std::uint8_t*>(again.data()), again.size()}, "written");
  expect(std::ranges::equal(read, tensors,
                            [](const StoredTensor& a, const StoredTensor& b) {
                              return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape &&
                                     a.begin == b.begin && a.bytes == b.bytes;
                            }),
         "the header does not survive being written");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  llamesh::test::expect_an_answer([&] { parse(std::string(input)); });
  const auto line = input.substr(0, input.find('\n'));
  std::string file(8, '\0');
  for (unsigned i = 0; i < 8; ++i) file[i] = static_cast<char>(line.size() >> (8 * i));
  file.append(line).append(input.substr(std::min(line.size() + 1, size)));
  llamesh::test::expect_an_answer([&] { parse(file); });
  return 0;
}
