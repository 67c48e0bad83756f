#include "train/job/shared_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/process.hpp"

namespace llamesh::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr char mark = 'x';

/// A file, closed at the end of its scope. Not by way of a link that somebody has put there.
class File {
 public:
  File(const fs::path& path, int flags)
      : descriptor_(open(path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, 0640)) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  explicit operator bool() const { return descriptor_ >= 0; }
  /// One byte at the place of a rank, on its way to the server when it returns.
  bool write_mark(int rank) const {
    return pwrite(descriptor_, &mark, 1, rank) == 1 && fsync(descriptor_) == 0;
  }
  bool has_mark(int rank) const {
    char byte = 0;
    return pread(descriptor_, &byte, 1, rank) == 1 && byte == mark;
  }

 private:
  int descriptor_;
};

/// This node's part: an empty text when it has added its byte.
std::string add_mark(const fs::path& token, int rank, const std::string& first_host,
                     std::chrono::milliseconds patience) {
  const auto folder = token.parent_path().string();
  const auto& host = this_process().host;
  for (const auto start = Clock::now(); Clock::now() - start < patience;
       std::this_thread::sleep_for(std::chrono::milliseconds(50))) {
    const File file(token, O_WRONLY);
    if (file && file.write_mark(rank)) return {};
    if (errno != ENOENT && errno != ESTALE)
      return fmt::format("cannot write into {} on {}: {}", folder, host, std::strerror(errno));
  }
  return fmt::format(
      "{} on {} is not the one on {}, where rank 0 made a file that does not appear here; every "
      "node has to see the same folder: name one on a file system that all of them mount",
      folder, host, first_host);
}

}  // namespace

BorrowedFolder::BorrowedFolder(const fs::path& folder) {
  std::error_code error;
  for (auto at = fs::absolute(folder); !fs::exists(at, error) && at.has_relative_path();
       at = at.parent_path())
    made_.push_back(at);
  make_folder(folder);
}

BorrowedFolder::~BorrowedFolder() {
  std::error_code ignored;
  for (const auto& folder : made_) fs::remove(folder, ignored);  // only when it is empty
}

std::string trouble_with_shared_folder(const comm::Communicator& world, bool first_on_node,
                                       const fs::path& folder, std::chrono::milliseconds patience) {
  const bool writes = world.rank() == 0;
  const auto name = world.broadcast(fmt::format(".shared-{}-{}-{}", this_process().host, getpid(),
                                                Clock::now().time_since_epoch().count()));
  const auto first_host = world.broadcast(this_process().host);
  const auto token = folder / name;
  std::string trouble;
  if (writes && !File(token, O_WRONLY | O_CREAT | O_EXCL))
    trouble = fmt::format("cannot write into {} on {}: {}", folder.string(), first_host,
                          std::strerror(errno));
  // Where rank 0 cannot write, nobody is to be blamed for not seeing it.
  const bool made = world.broadcast(trouble).empty();
  if (made && first_on_node) trouble = add_mark(token, world.rank(), first_host, patience);
  const auto added = world.all_gather(std::int64_t{made && first_on_node && trouble.empty()});
  if (writes && made) {
    const File file(token, O_RDONLY);
    for (int rank = 0; rank < world.size() && trouble.empty(); ++rank)
      if (added[static_cast<std::size_t>(rank)] != 0 && !file.has_mark(rank))
        trouble = fmt::format("what rank {} has written into {} does not appear on {}", rank,
                              folder.string(), first_host);
    unlink(token.c_str());
  }
  return trouble;
}

void check_shared_folder(const comm::Communicator& world, bool first_on_node,
                         const fs::path& folder, std::chrono::milliseconds patience) {
  const auto trouble = trouble_with_shared_folder(world, first_on_node, folder, patience);
  comm::agree(world, [&] { validate(trouble.empty(), "run.folder: {}", trouble); });
}

}  // namespace llamesh::train
