#include "core/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "core/process.hpp"
#include "core/text.hpp"

namespace llamesh {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t longest_line = 1 << 20;

[[noreturn]] void give_up(const char* doing, const fs::path& path) {
  fail(ExitCode::io_failure, "cannot {} {}: {}", doing, path.string(), std::strerror(errno));
}

/// Repeats a call while a signal interrupts it (network file systems) and returns its result.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

/// Opens without waiting for a FIFO's other end. A terminal does not become the controlling one.
int open_at_once(const fs::path& path, int flags) {
  flags |= O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  return uninterrupted([&] { return ::open(path.c_str(), flags, 0640); });
}

}  // namespace

ExitCode exit_code_of(const std::error_code& reason) {
  for (const auto mistake :
       {std::errc::no_such_file_or_directory, std::errc::not_a_directory, std::errc::is_a_directory,
        std::errc::permission_denied, std::errc::filename_too_long,
        std::errc::too_many_symbolic_link_levels, std::errc::file_exists})
    if (reason == mistake) return ExitCode::bad_input;
  return ExitCode::io_failure;
}

Descriptor Descriptor::to_read(const fs::path& path, ExitCode wrong_file) {
  const int fd = open_at_once(path, O_RDONLY);
  if (fd < 0) {
    const std::error_code why(errno, std::generic_category());
    if (why == std::errc::no_such_device_or_address)  // a socket
      fail(wrong_file, "'{}' is not a regular file", path.string());
    fail(exit_code_of(why) == ExitCode::bad_input ? wrong_file : ExitCode::io_failure,
         "'{}' cannot be opened: {}{}", path.string(), std::strerror(why.value()),
         why == std::errc::no_such_file_or_directory ? did_you_mean_path(path) : "");
  }
  Descriptor file(fd, path);
  file.require_regular(wrong_file);
  return file;
}

Descriptor Descriptor::to_write(const fs::path& path, int flags) {
  const int fd = open_at_once(path, flags | O_NOFOLLOW);
  if (fd < 0) {
    const int why = errno;
    std::error_code ignored;
    validate(why != ELOOP || !fs::is_symlink(path, ignored),
             "'{}' is a symbolic link, and nothing is written through one; remove it",
             path.string());
    validate(why != EISDIR, "'{}' is a folder; move it away", path.string());
    validate(why != ENXIO, "'{}' is not a regular file; move it away", path.string());
    fail(ExitCode::io_failure, "cannot {} {}: {}", (flags & O_CREAT) != 0 ? "create" : "open",
         path.string(), std::strerror(why));
  }
  Descriptor file(fd, path);
  file.require_regular(ExitCode::bad_input);
  return file;
}

/// Also makes reads and writes blocking again, which files recalled from tape need.
void Descriptor::require_regular(ExitCode wrong_file) const {
  struct stat status {};
  if (fstat(fd_, &status) != 0) give_up("examine", path_);
  if (S_ISDIR(status.st_mode)) fail(wrong_file, "'{}' is a folder, not a file", path_.string());
  if (!S_ISREG(status.st_mode)) fail(wrong_file, "'{}' is not a regular file", path_.string());
  const int flags = fcntl(fd_, F_GETFL);
  if (flags < 0 || fcntl(fd_, F_SETFL, flags & ~O_NONBLOCK) != 0) give_up("open", path_);
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Descriptor::Descriptor(Descriptor&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

std::int64_t Descriptor::bytes() const {
  struct stat status {};
  if (fstat(fd_, &status) != 0) give_up("ask for the size of", path_);
  return status.st_size;
}

std::int64_t Descriptor::read_some(std::int64_t offset, void* data, std::int64_t count) const {
  std::int64_t done = 0;
  while (done < count) {
    const auto got = uninterrupted([&] {
      return ::pread(fd_, static_cast<char*>(data) + done, static_cast<std::size_t>(count - done),
                     offset + done);
    });
    if (got < 0) give_up("read", path_);
    if (got == 0) break;
    done += got;
  }
  return done;
}

void Descriptor::read(std::int64_t offset, void* data, std::int64_t count) const {
  if (const auto got = read_some(offset, data, count); got < count)
    fail(ExitCode::io_failure, "{} ends at byte {}, {} more are needed", path_.string(),
         offset + got, count - got);
}

void Descriptor::write(std::int64_t offset, const void* data, std::int64_t count) {
  const auto* from = static_cast<const char*>(data);
  while (count > 0) {
    const auto put =
        uninterrupted([&] { return ::pwrite(fd_, from, static_cast<std::size_t>(count), offset); });
    if (put < 0) give_up("write", path_);
    offset += put;
    from += put;
    count -= put;
  }
}

void Descriptor::append(std::string_view text) {
  while (!text.empty()) {
    const auto put = uninterrupted([&] { return ::write(fd_, text.data(), text.size()); });
    if (put < 0) give_up("write", path_);
    text.remove_prefix(static_cast<std::size_t>(put));
  }
}

void Descriptor::resize(std::int64_t bytes) {
  if (uninterrupted([&] { return ::ftruncate(fd_, bytes); }) != 0)
    give_up("change the size of", path_);
}

void Descriptor::sync() {
  if (uninterrupted([&] { return ::fsync(fd_); }) != 0) give_up("bring to the disk", path_);
}

std::string read_file(const fs::path& path, std::int64_t max_bytes, ExitCode wrong_file) {
  const auto file = Descriptor::to_read(path, wrong_file);
  const auto bytes = file.bytes();
  if (bytes > max_bytes)
    fail(wrong_file, "'{}' has {} bytes; at most {} are read", path.string(), bytes, max_bytes);
  std::string text(static_cast<std::size_t>(bytes), '\0');
  file.read(0, text.data(), bytes);
  return text;
}

namespace {

/// Returns the names in a folder that are closest to `name`, if they differ in at most a third of
/// its characters.
std::vector<std::string> near_names(const fs::path& folder, const std::string& name) {
  std::vector<std::string> near;
  std::size_t least = name.size() / 3;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    auto other = at->path().filename().string();
    const auto distance = edit_distance(name, other);
    if (distance > least) continue;
    if (distance < least) near.clear();
    least = distance;
    near.push_back(std::move(other));
  }
  std::ranges::sort(near);
  return near;
}

}  // namespace

std::string did_you_mean_path(const fs::path& path) {
  std::error_code ignored;
  fs::path there;
  auto part = path.begin();
  while (part != path.end() && fs::exists(there / *part, ignored)) there /= *part++;
  if (part == path.end()) return "";
  fs::path rest;
  for (auto at = std::next(part); at != path.end(); ++at) rest /= *at;
  std::string found;
  const auto add = [&](const fs::path& candidate) {
    if (fs::exists(candidate, ignored))
      found += fmt::format("{} '{}'", found.empty() ? "; did you mean" : " or", candidate.string());
  };
  if (path.is_relative()) add("runs" / path);
  if (part->string().size() < 256)  // no name is longer
    for (const auto& name : near_names(there.empty() ? "." : there, part->string()))
      add(rest.empty() ? there / name : there / name / rest);
  return found.empty() ? "" : found + '?';
}

void for_each_line(const Descriptor& file,
                   const std::function<void(std::string_view line, bool ended)>& visit) {
  std::string held;  // start of a line whose end has not been read
  std::string piece(static_cast<std::size_t>(longest_line), '\0');
  for (std::int64_t at = 0;;) {
    const auto got = file.read_some(at, piece.data(), std::ssize(piece));
    if (got == 0) break;
    at += got;
    std::string_view rest(piece.data(), static_cast<std::size_t>(got));
    for (auto end = rest.find('\n'); end != rest.npos; end = rest.find('\n')) {
      held += rest.substr(0, end);
      visit(held, true);
      held.clear();
      rest.remove_prefix(end + 1);
    }
    held += rest;
    validate(std::ssize(held) <= longest_line, "'{}' has a line of more than {} bytes",
             file.path().string(), longest_line);
  }
  if (!held.empty()) visit(held, false);
}

void sync_folder(const fs::path& folder) {
  const int fd = open_at_once(folder, O_RDONLY | O_DIRECTORY);
  if (fd < 0) give_up("open", folder);
  Descriptor(fd, folder).sync();
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return;
  const auto parent = folder.parent_path();
  if (!parent.empty() && parent != folder) make_folder(parent);
  if (::mkdir(folder.c_str(), 0750) != 0 && errno != EEXIST) give_up("make the folder", folder);
  if (!fs::is_directory(folder, error))
    fail(ExitCode::io_failure, "cannot make the folder {}: a file has that name; move it away",
         folder.string());
  sync_folder(parent.empty() ? "." : parent);
}

void replace_durably(const fs::path& path, const std::function<void(Descriptor&)>& write) {
  auto temporary = path;
  temporary += fmt::format(".{}.tmp", this_process().rank);
  // An existing file with this name is left over from a killed process, or planted. Do not write to
  // it.
  if (::unlink(temporary.c_str()) != 0 && errno != ENOENT) give_up("replace", temporary);
  try {
    auto file = Descriptor::to_write(temporary, O_WRONLY | O_CREAT | O_EXCL);
    write(file);
    file.sync();
    rename_path(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_folder(path.has_parent_path() ? path.parent_path() : ".");
}

void write_durably(const fs::path& path, std::string_view text) {
  replace_durably(path, [&](Descriptor& file) { file.append(text); });
}

void rename_path(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) give_up("rename to its final name", from);
}

bool exchange_paths(const fs::path& a, const fs::path& b) {
  return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
}

fs::path quarantine(const fs::path& path, const fs::path& name) {
  std::error_code error;
  for (int i = 1;; ++i) {
    auto to = name;
    to += fmt::format(".quarantined-{}", i);
    if (fs::exists(fs::symlink_status(to, error))) continue;
    rename_path(path, to);
    return to;
  }
}

}  // namespace llamesh
