#include "app/bench_checkpoint_raw.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "core/file.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t piece = 4 << 20;  // bytes a call

}  // namespace

void raw_write(const fs::path& path, const RandomState& state, int rank, WriteBack write_back) {
  auto file = Descriptor::to_write(path, O_WRONLY | O_CREAT);
  const auto begin = rank * state.bytes();
  for (std::int64_t at = 0; at < state.bytes(); at += piece) {
    const auto count = std::min(piece, state.bytes() - at);
    file.write(begin + at, state.data() + at, count);
    if (write_back == WriteBack::early)
      ::sync_file_range(file.get(), begin + at, count, SYNC_FILE_RANGE_WRITE);
  }
  file.sync();
}

void raw_read(const fs::path& path, const RandomState& state, int rank) {
  const auto file = Descriptor::to_read(path);
  const auto begin = rank * state.bytes();
  for (std::int64_t at = 0; at < state.bytes(); at += piece)
    file.read(begin + at, state.data() + at, std::min(piece, state.bytes() - at));
}

void drop_from_cache(const fs::path& path) {
  ::posix_fadvise(Descriptor::to_read(path).get(), 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace llamesh::app
