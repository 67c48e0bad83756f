// For any file with JSON records, the answer is documents or a user error. An array of objects must
// be split exactly as a whole-document parser splits it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "answer.hpp"
#include "data/jsonl.hpp"

namespace {

using llamesh::data::JsonRecords;
using nlohmann::json;

const std::string name = "fuzzed";

void check_cut(const json& array, std::string_view text) {
  JsonRecords records(text, name);
  std::string_view record;
  for (const json& object : array)
    llamesh::test::expect(records.next(record) && json::parse(record) == object,
                          "a record is not the element of the array");
  llamesh::test::expect(!records.next(record), "there are more records than elements");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  JsonRecords records(text, name);
  llamesh::test::expect_an_answer([&] {
    for (std::string_view record; records.next(record);)
      llamesh::test::expect_an_answer([&] { llamesh::data::parse_jsonl(record, records.where()); });
  });
  if (text.find('\0') != text.npos) return 0;  // the whole-document parser stops there
  const json whole = json::parse(text, nullptr, false);
  const auto is_object = [](const json& element) { return element.is_object(); };
  if (whole.is_array() && std::ranges::all_of(whole, is_object)) check_cut(whole, text);
  return 0;
}
