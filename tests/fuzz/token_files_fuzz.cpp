// For any token id file or Megatron index, the answer is ids and documents that lie within the
// file, or a user error. An input's first byte chooses the format: token ids with llm.c's or
// NumPy's header (h), without it (2 or 4 bytes per id), or an index (m) after a two-byte size for
// its .bin.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "answer.hpp"
#include "data/megatron.hpp"
#include "data/token_ids.hpp"

namespace {

using llamesh::test::expect;
namespace data = llamesh::data;

using Bytes = std::span<const std::uint8_t>;

void read_ids(Bytes file, data::TokenDtype stated) {
  const auto ids = data::ids_of_token_file(file, "fuzzed", stated);
  const auto inside = ids.bytes();
  expect(inside.data() >= file.data() && inside.data() + inside.size() == file.data() + file.size(),
         "ids lie outside the file");
  expect(ids.size() * ids.id_bytes() == std::ssize(inside), "a part of an id");
  std::vector<std::int32_t> wide(static_cast<std::size_t>(ids.size()));
  const auto largest = ids.widen(0, wide);
  if (!wide.empty()) {
    const auto at = ids.find(largest, 0, ids.size());
    expect(at < ids.size() && ids[at] == largest, "the largest id is not there");
  }
  if (!data::has_token_header(file)) return;
  const auto header = data::token_header(ids.id_bytes(), ids.size());
  constexpr std::size_t known_bytes = 3 * sizeof(header[0]);  // the others are not read
  expect(std::memcmp(header.data(), file.data(), known_bytes) == 0, "another header is written");
}

void read_index(Bytes index, std::int64_t ids_bytes) {
  const data::MegatronIndex documents(index, "fuzzed.idx", {"fuzzed.bin", ids_bytes});
  const std::int64_t ids = ids_bytes / documents.id_bytes();
  expect(ids * documents.id_bytes() == ids_bytes, "a part of an id");
  std::int64_t before = 0;
  for (std::int64_t from = 0; from < std::min<std::int64_t>(ids, 1000); ++from) {
    const auto next = documents.next_document(from);
    expect(next >= from && next >= before && next <= ids, "a document begins nowhere");
    before = next;
  }
}

void read(std::uint8_t format, Bytes file) {
  if (format == 'h') read_ids(file, data::TokenDtype::from_header);
  if (format == '2') read_ids(file, data::TokenDtype::uint16);
  if (format == '4') read_ids(file, data::TokenDtype::uint32);
  if (format == 'm' && file.size() >= 2)
    read_index(file.subspan(2), 1 + file[0] + 256 * file[1]);  // an empty file cannot be mapped
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  if (size == 0) return 0;
  llamesh::test::expect_an_answer([&] { read(input[0], {input + 1, size - 1}); });
  return 0;
}
