// For any manifest.json, the answer is datasets that lie within their file, or an error. Each input
// is used twice: as it is, and after a first line that seals it, so that the fuzzer need not guess
// a checksum.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "answer.hpp"
#include "checkpoint/format/manifest.hpp"
#include "core/hash.hpp"
#include "train/records/validation_record.hpp"

namespace {

using llamesh::ExitCode;
using llamesh::test::expect;
namespace checkpoint = llamesh::checkpoint;

void check_dataset(const checkpoint::DatasetEntry& entry, std::int64_t file_bytes) {
  expect(entry.offset >= 0 && entry.offset <= file_bytes &&
             entry.numel() <= (file_bytes - entry.offset) / 4,
         "a dataset lies outside the file");
  if (entry.numel() > 1'000'000) return;
  std::vector<int> times(static_cast<std::size_t>(entry.numel()), 0);  // segments per element
  for (const auto& segment : entry.segments)
    llamesh::for_each_run(entry.shape, entry.range(segment),
                          [&](std::int64_t begin, std::int64_t, std::int64_t count) {
                            for (std::int64_t i = begin; i < begin + count; ++i)
                              ++times.at(static_cast<std::size_t>(i));
                          });
  expect(std::ranges::all_of(times, [](int n) { return n == 1; }),
         "the segments do not tile their dataset");
}

void read(const std::string& text) {
  const auto manifest = checkpoint::parse_manifest(text);
  for (const auto& entry : manifest.datasets) check_dataset(entry, manifest.file_bytes);
  llamesh::train::parse_validation(manifest.progress.validation);  // never throws
  const auto written = checkpoint::to_text(manifest);
  const auto again = checkpoint::parse_manifest(written);
  expect(checkpoint::to_text(again) == written && again.progress == manifest.progress,
         "the manifest does not survive being written");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto seal = llamesh::to_hex(llamesh::hash_of(text.data(), text.size()));
  for (const auto& manifest : {text, "{\"checksum\": \"" + seal + "\",\n" + text})
    llamesh::test::expect_an_answer([&] { read(manifest); }, ExitCode::io_failure);
  return 0;
}
