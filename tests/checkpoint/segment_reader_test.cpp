#include "checkpoint/format/segment_reader.hpp"

#include <fcntl.h>

#include "core/hash.hpp"
#include "fixture.hpp"

namespace llamesh::test {
namespace {

using checkpoint::Hashing;

/// A file with one dataset, and its numbers. The segments have several sizes, some above and some
/// below the threshold for hashing on another thread.
struct Sample {
  explicit Sample(std::uint64_t seed) {
    auto file = Descriptor::to_write(folder.path() / fmt::format("state-{}", world().rank()),
                                     O_RDWR | O_CREAT);
    for (const std::int64_t count : {3, 400'000, 131'072, 70'000, 1'000'003}) {
      entry.segments.push_back({std::ssize(values), count, 0});
      values.resize(values.size() + static_cast<std::size_t>(count));
    }
    fill_normal(values.data(), 0, std::ssize(values), seed, "segments", 1.0F);
    for (auto& s : entry.segments)
      s.hash = hash_of(values.data() + s.begin, 4 * static_cast<std::size_t>(s.count));
    entry.shape = {std::ssize(values)};
    entry.parts = {Box::whole(entry.shape)};
    file.write(entry.offset, values.data(), 4 * std::ssize(values));
  }
  std::filesystem::path path() const {
    return folder.path() / fmt::format("state-{}", world().rank());
  }
  /// Reads all segments, alternating between read_ahead() and read().
  std::vector<float> read(Hashing hashing) const {
    std::vector<float> got(values.size());
    checkpoint::SegmentReader reader(path(), hashing);
    for (std::size_t i = 0; i < entry.segments.size(); ++i) {
      const auto& s = entry.segments[i];
      const auto place = std::span(got).subspan(static_cast<std::size_t>(s.begin),
                                                static_cast<std::size_t>(s.count));
      if (i % 2 == 0)
        reader.read(entry, s, place);
      else
        reader.read_ahead(entry, s, place);
    }
    reader.finish();
    return got;
  }
  Folder folder;
  checkpoint::DatasetEntry entry{"/model/x", {}, 4096, {}, {}};
  std::vector<float> values;
};

TEST(SegmentReader, ReadsWhatIsThereAndFindsEachFlippedBit) {
  for (const auto hashing : {Hashing::synchronous, Hashing::asynchronous}) {
    const Sample sample(7);
    EXPECT_EQ(sample.read(hashing), sample.values);
    auto file = Descriptor::to_write(sample.path(), O_RDWR);
    for (const auto& s : sample.entry.segments)
      for (const std::int64_t at : {s.begin, s.begin + s.count - 1}) {
        const auto offset = sample.entry.offset + 4 * at;
        float number = 0;
        file.read(offset, &number, 4);
        const float other = -number;
        file.write(offset, &other, 4);
        EXPECT_EQ(code_of([&] { sample.read(hashing); }), ExitCode::io_failure) << at;
        file.write(offset, &number, 4);
      }
    EXPECT_EQ(sample.read(hashing), sample.values);
  }
}

TEST(SegmentReader, AFileThatEndsEarlyIsAnError) {
  for (const auto hashing : {Hashing::synchronous, Hashing::asynchronous}) {
    const Sample sample(8);
    std::filesystem::resize_file(sample.path(), std::filesystem::file_size(sample.path()) - 1);
    EXPECT_EQ(code_of([&] { sample.read(hashing); }), ExitCode::io_failure);
  }
}

}  // namespace
}  // namespace llamesh::test
