// A library to preload (LD_PRELOAD) into a run's ranks. It appends each successful call that
// changes the disk below the folder LLAMESH_RECORD_BELOW to the file LLAMESH_RECORD, with its
// bytes, for all processes in one common order (record.hpp).
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <mutex>

#include "interpose.hpp"
#include "record.hpp"

namespace llamesh::test {
namespace {

/// A lock held while a call is made and recorded: one thread in one process at a time.
class Turn {
 public:
  Turn() : lock_(mutex()) { flock(record(), LOCK_EX); }
  ~Turn() {
    const int error = errno;
    flock(record(), LOCK_UN);
    errno = error;
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  static int record() {
    static const int fd = next<int(const char*, int, ...)>("open")(
        getenv("LLAMESH_RECORD"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) abort();
    return fd;
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  std::unique_lock<std::mutex> lock_;
};

/// Returns true below the root. The root itself counts too: its fsync persists names created in it.
bool is_ours(const std::string& path) {
  static const char* const root = getenv("LLAMESH_RECORD_BELOW");
  return root != nullptr && (path == root || path.starts_with(std::string(root) + "/"));
}

std::uint64_t inode_of(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

std::uint64_t inode_of(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

/// A name in a call: its folder, and itself.
struct Name {
  Name(int at, const char* path) {
    std::string full = path;
    if (at != AT_FDCWD && full[0] != '/') full = path_of(at) + "/" + full;
    while (full.size() > 1 && full.back() == '/') full.pop_back();
    const auto slash = full.rfind('/');
    const auto parent = slash == std::string::npos ? "." : full.substr(0, slash + 1);
    char resolved[PATH_MAX];
    if (realpath(parent.c_str(), resolved) == nullptr) return;
    folder = resolved;
    name = full.substr(slash + 1);  // npos + 1 is 0
  }
  std::string path() const { return folder + "/" + name; }
  bool counts() const { return is_ours(path()); }

  std::string folder, name;
};

void put(CallHeader header, const std::string& names = {}, const void* data = nullptr) {
  header.rank = rank_of_process();
  static const auto real = next<ssize_t(int, const void*, size_t)>("write");
  std::string text(reinterpret_cast<const char*>(&header), sizeof(header));
  text += names;
  text.append(static_cast<const char*>(data), header.bytes);
  if (real(Turn::record(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) abort();
}

void put_name(Call call, std::uint64_t inode, const Name& name) {
  put({.call = call,
       .inode = inode,
       .folder = inode_of(name.folder),
       .name_bytes = static_cast<std::uint32_t>(name.name.size())},
      name.name);
}

void put_names(Call call, const Name& from, const Name& to) {
  put({.call = call,
       .folder = inode_of(from.folder),
       .other_folder = inode_of(to.folder),
       .name_bytes = static_cast<std::uint32_t>(from.name.size()),
       .other_name_bytes = static_cast<std::uint32_t>(to.name.size())},
      from.name + to.name);
}

void put_bytes(int fd, std::int64_t offset, const void* data, ssize_t bytes) {
  if (bytes > 0)
    put({.call = Call::write,
         .inode = inode_of(fd),
         .offset = offset,
         .bytes = static_cast<std::uint64_t>(bytes)},
        {}, data);
}

/// Returns the offset where write(2) will put its bytes.
std::int64_t position(int fd) {
  struct stat status {};
  if ((fcntl(fd, F_GETFL) & O_APPEND) != 0 && fstat(fd, &status) == 0) return status.st_size;
  return lseek(fd, 0, SEEK_CUR);
}

template <class MakeCall>
int open_file(int at, const char* path, int flags, MakeCall make_call) {
  const Name name(at, path);
  if ((flags & (O_CREAT | O_TRUNC)) == 0 || !name.counts()) return make_call();
  const Turn turn;
  const auto before = inode_of(name.path());
  const int fd = make_call();
  if (fd >= 0 && before == 0) put_name(Call::make_file, inode_of(fd), name);
  if (fd >= 0 && before != 0 && (flags & O_TRUNC) != 0)
    put({.call = Call::resize, .inode = inode_of(fd)});
  return fd;
}

template <class MakeCall>
int make_folder(int at, const char* path, MakeCall make_call) {
  const Name name(at, path);
  if (!name.counts()) return make_call();
  const Turn turn;
  const int result = make_call();
  if (result == 0) put_name(Call::make_folder, inode_of(name.path()), name);
  return result;
}

template <class MakeCall>
int remove_name(int at, const char* path, MakeCall make_call) {
  const Name name(at, path);
  if (!name.counts()) return make_call();
  const Turn turn;
  const int result = make_call();
  if (result == 0) put_name(Call::remove, 0, name);
  return result;
}

template <class MakeCall>
int rename_path(const char* from, const char* to, Call call, MakeCall make_call) {
  const Name old_name(AT_FDCWD, from);
  const Name new_name(AT_FDCWD, to);
  if (!old_name.counts() && !new_name.counts()) return make_call();
  const Turn turn;
  const int result = make_call();
  if (result == 0) put_names(call, old_name, new_name);
  return result;
}

/// Records a size change or a sync.
template <class MakeCall>
int on_file(int fd, Call call, std::int64_t size, MakeCall make_call) {
  if (!is_ours(path_of(fd))) return make_call();
  const Turn turn;
  const int result = make_call();
  if (result == 0) put({.call = call, .inode = inode_of(fd), .offset = size});
  return result;
}

/// Records a write at `offset` or, if that is negative, at the file's position.
template <class MakeCall>
ssize_t on_write(int fd, std::int64_t offset, const iovec* parts, int count, MakeCall make_call) {
  if (!is_ours(path_of(fd))) return make_call();
  const Turn turn;
  if (offset < 0) offset = position(fd);
  const ssize_t written = make_call();
  for (auto left = written; left > 0 && count > 0; ++parts, --count) {
    const auto bytes = std::min(left, static_cast<ssize_t>(parts->iov_len));
    put_bytes(fd, offset, parts->iov_base, bytes);
    offset += bytes;
    left -= bytes;
  }
  return written;
}

template <class MakeCall>
ssize_t on_write(int fd, std::int64_t offset, const void* data, size_t bytes, MakeCall make_call) {
  const iovec part{const_cast<void*>(data), bytes};
  return on_write(fd, offset, &part, 1, make_call);
}

}  // namespace
}  // namespace llamesh::test

using namespace llamesh::test;

// Wraps a C library function: `make_call` calls it, and the program gets `result`.
#define INTERPOSE(type, name, parameters, arguments, result) \
  extern "C" type name parameters {                          \
    static const auto real = next<type parameters>(#name);   \
    const auto make_call = [&] { return real arguments; };   \
    return result;                                           \
  }
#define INTERPOSE_OPEN(name)                                                             \
  extern "C" int name(const char* path, int flags, ...) {                                \
    static const auto real = next<int(const char*, int, ...)>(#name);                    \
    va_list more;                                                                        \
    va_start(more, flags);                                                               \
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0; \
    va_end(more);                                                                        \
    return open_file(AT_FDCWD, path, flags, [&] { return real(path, flags, mode); });    \
  }
#define INTERPOSE_OPENAT(name)                                                           \
  extern "C" int name(int at, const char* path, int flags, ...) {                        \
    static const auto real = next<int(int, const char*, int, ...)>(#name);               \
    va_list more;                                                                        \
    va_start(more, flags);                                                               \
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0; \
    va_end(more);                                                                        \
    return open_file(at, path, flags, [&] { return real(at, path, flags, mode); });      \
  }
#define INTERPOSE_WRITE(name)                                                  \
  INTERPOSE(ssize_t, name, (int fd, const void* data, size_t bytes, off_t at), \
            (fd, data, bytes, at), on_write(fd, at, data, bytes, make_call))

INTERPOSE_OPEN(open)
INTERPOSE_OPEN(open64)
INTERPOSE_OPENAT(openat)
INTERPOSE_OPENAT(openat64)
INTERPOSE(int, mkdir, (const char* path, mode_t mode), (path, mode),
          make_folder(AT_FDCWD, path, make_call))
INTERPOSE(int, mkdirat, (int at, const char* path, mode_t mode), (at, path, mode),
          make_folder(at, path, make_call))
INTERPOSE(int, unlink, (const char* path), (path), remove_name(AT_FDCWD, path, make_call))
INTERPOSE(int, unlinkat, (int at, const char* path, int flags), (at, path, flags),
          remove_name(at, path, make_call))
INTERPOSE(int, rmdir, (const char* path), (path), remove_name(AT_FDCWD, path, make_call))
INTERPOSE(int, remove, (const char* path), (path), remove_name(AT_FDCWD, path, make_call))
INTERPOSE(int, rename, (const char* from, const char* to), (from, to),
          rename_path(from, to, Call::rename, make_call))
INTERPOSE(int, renameat2,
          (int from_at, const char* from, int to_at, const char* to, unsigned int flags),
          (from_at, from, to_at, to, flags),
          rename_path(from, to, (flags & RENAME_EXCHANGE) != 0 ? Call::exchange : Call::rename,
                      make_call))
INTERPOSE(ssize_t, write, (int fd, const void* data, size_t bytes), (fd, data, bytes),
          on_write(fd, -1, data, bytes, make_call))
INTERPOSE_WRITE(pwrite)
INTERPOSE_WRITE(pwrite64)
INTERPOSE(ssize_t, writev, (int fd, const iovec* parts, int count), (fd, parts, count),
          on_write(fd, -1, parts, count, make_call))
INTERPOSE(ssize_t, pwritev, (int fd, const iovec* parts, int count, off_t at),
          (fd, parts, count, at), on_write(fd, at, parts, count, make_call))
INTERPOSE(ssize_t, pwritev64, (int fd, const iovec* parts, int count, off_t at),
          (fd, parts, count, at), on_write(fd, at, parts, count, make_call))
INTERPOSE(int, ftruncate, (int fd, off_t size), (fd, size),
          on_file(fd, Call::resize, size, make_call))
INTERPOSE(int, ftruncate64, (int fd, off_t size), (fd, size),
          on_file(fd, Call::resize, size, make_call))
INTERPOSE(int, fsync, (int fd), (fd), on_file(fd, Call::sync, 0, make_call))
INTERPOSE(int, fdatasync, (int fd), (fd), on_file(fd, Call::sync, 0, make_call))
