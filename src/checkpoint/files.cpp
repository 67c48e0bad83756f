#include "checkpoint/files.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.hpp"

namespace llamesh::checkpoint {
namespace {

[[noreturn]] void give_up(const char* doing, const std::filesystem::path& path) {
  fail(ExitCode::io_failure, "cannot {} {}: {}", doing, path.string(), std::strerror(errno));
}

}  // namespace

Descriptor::Descriptor(const std::filesystem::path& path, int flags)
    : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0640)), path_(path) {
  if (fd_ < 0) give_up((flags & O_CREAT) != 0 ? "create" : "open", path);
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Descriptor::Descriptor(Descriptor&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

std::int64_t Descriptor::bytes() const {
  struct stat status {};
  if (fstat(fd_, &status) != 0) give_up("ask for the size of", path_);
  return status.st_size;
}

void Descriptor::read(std::int64_t offset, void* data, std::int64_t count) const {
  auto* to = static_cast<char*>(data);
  while (count > 0) {
    const auto got = ::pread(fd_, to, static_cast<std::size_t>(count), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) give_up("read", path_);
    if (got == 0)
      fail(ExitCode::io_failure, "{} ends at byte {}, {} more are needed", path_.string(), offset,
           count);
    offset += got;
    to += got;
    count -= got;
  }
}

void Descriptor::write(std::int64_t offset, const void* data, std::int64_t count) {
  const auto* from = static_cast<const char*>(data);
  while (count > 0) {
    const auto put = ::pwrite(fd_, from, static_cast<std::size_t>(count), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) give_up("write", path_);
    offset += put;
    from += put;
    count -= put;
  }
}

void Descriptor::sync() {
  if (::fsync(fd_) != 0) give_up("bring to the disk", path_);
}

void sync_folder(const std::filesystem::path& folder) {
  Descriptor(folder, O_RDONLY | O_DIRECTORY).sync();
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) return;
  const auto parent = folder.parent_path();
  if (!parent.empty() && parent != folder) make_folder(parent);
  if (::mkdir(folder.c_str(), 0750) != 0 && errno != EEXIST) give_up("make the folder", folder);
  if (!std::filesystem::is_directory(folder, error))
    fail(ExitCode::io_failure, "cannot make the folder {}: a file has that name; move it away",
         folder.string());
}

void write_durably(const std::filesystem::path& path, const std::string& text) {
  auto temporary = path;
  temporary += ".tmp";
  {
    Descriptor file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    file.write(0, text.data(), std::ssize(text));
    file.sync();
  }
  rename_path(temporary, path);
  sync_folder(path.parent_path());
}

std::string read_text(const std::filesystem::path& path) {
  const Descriptor file(path, O_RDONLY);
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  file.read(0, text.data(), std::ssize(text));
  return text;
}

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) give_up("rename to its final name", from);
}

void exchange_paths(const std::filesystem::path& a, const std::filesystem::path& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return;
  auto third = b;
  third += ".exchange";
  rename_path(b, third);
  rename_path(a, b);
  rename_path(third, a);
}

}  // namespace llamesh::checkpoint
