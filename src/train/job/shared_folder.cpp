#include "train/job/shared_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <span>
#include <thread>

#include "core/file.hpp"
#include "core/process.hpp"

namespace llamesh::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr char mark = 'x';

/// Adds the host's name to an error from writing into the folder.
Error on_host(const Error& error) {
  return {error.code(), fmt::format("on {}: {}", this_process().host, error.what())};
}

bool is_there(const fs::path& path) {
  std::error_code ignored;  // ESTALE too: it is not the same file any more
  return fs::exists(fs::symlink_status(path, ignored));
}

/// Writes one byte at a rank's offset and syncs it to the server.
void write_mark(const fs::path& token, int rank) {
  auto file = Descriptor::to_write(token, O_WRONLY);
  file.write(rank, &mark, 1);
  file.sync();
}

bool has_mark(const Descriptor& file, int rank) {
  char byte = 0;
  return file.read_some(rank, &byte, 1) == 1 && byte == mark;
}

/// Adds this node's byte; returns nothing on success.
std::optional<Error> add_mark(const fs::path& token, int rank, const std::string& first_host,
                              std::chrono::milliseconds timeout) {
  for (const auto start = Clock::now(); Clock::now() - start < timeout;
       std::this_thread::sleep_for(std::chrono::milliseconds(50))) {
    if (!is_there(token)) continue;
    try {
      write_mark(token, rank);
      return {};
    } catch (const Error& error) {
      if (is_there(token)) return on_host(error);
    }
  }
  return Error(
      ExitCode::bad_input,
      fmt::format(
          "{} on {} is not the one on {}, where rank 0 made a file that does not appear here; "
          "every node has to see the same folder: name one on a file system that all of them mount",
          token.parent_path().string(), this_process().host, first_host));
}

/// Creates the empty file. Rank 0 only.
std::optional<Error> make_token(const fs::path& token) {
  try {
    Descriptor::to_write(token, O_WRONLY | O_CREAT | O_EXCL);
    return {};
  } catch (const Error& error) {
    return on_host(error);
  }
}

/// Checks that every node's byte has arrived. Rank 0 only.
std::optional<Error> find_marks(const fs::path& token, std::span<const std::int64_t> added) {
  try {
    const auto file = Descriptor::to_read(token);
    for (int rank = 0; rank < std::ssize(added); ++rank)
      if (added[static_cast<std::size_t>(rank)] != 0 && !has_mark(file, rank))
        return Error(ExitCode::bad_input,
                     fmt::format("what rank {} has written into {} does not appear on {}", rank,
                                 token.parent_path().string(), this_process().host));
    return {};
  } catch (const Error& error) {
    return on_host(error);
  }
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
  for (const auto& folder : made_) fs::remove(folder, ignored);  // only if empty
}

std::optional<Error> shared_folder_problem(const comm::Communicator& world, bool first_on_node,
                                           const fs::path& folder,
                                           std::chrono::milliseconds timeout) {
  const bool is_first = world.rank() == 0;
  const auto name = world.broadcast(fmt::format(".shared-{}-{}-{}", this_process().host, getpid(),
                                                Clock::now().time_since_epoch().count()));
  const auto first_host = world.broadcast(this_process().host);
  const auto token = folder / name;
  std::optional<Error> trouble;
  if (is_first) trouble = make_token(token);
  // If rank 0 cannot write, the others cannot be expected to see the file.
  const bool made = world.broadcast(trouble ? "no" : "yes") == "yes";
  if (made && first_on_node) trouble = add_mark(token, world.rank(), first_host, timeout);
  const auto added = world.all_gather(std::int64_t{made && first_on_node && !trouble});
  if (is_first && made) {
    if (!trouble) trouble = find_marks(token, added);
    unlink(token.c_str());
  }
  return trouble;
}

void check_shared_folder(const comm::Communicator& world, bool first_on_node,
                         const fs::path& folder, std::chrono::milliseconds timeout) {
  const auto trouble = shared_folder_problem(world, first_on_node, folder, timeout);
  comm::agree(world, [&] {
    if (trouble) fail(trouble->code(), "run.folder: {}", trouble->what());
  });
}

}  // namespace llamesh::train
