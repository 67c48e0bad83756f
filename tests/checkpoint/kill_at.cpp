// A library to preload (LD_PRELOAD). It kills the program with SIGKILL just before the
// LLAMESH_KILL_AT-th call that changes a file or a folder's names. In an MPI program it kills only
// rank LLAMESH_KILL_RANK (default 0). With LLAMESH_KILL_AT=0 it kills nothing and prints the number
// of calls at the end. Counting starts once the environment has LLAMESH_KILL_ARMED.
//
// With LLAMESH_READ_ONLY=FOLDER it kills nothing: from that call on, every change below the folder
// fails as on a file system that has become read-only.
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>

namespace {

std::atomic<int> calls = 0;

bool this_rank() {
  const char* rank = getenv("OMPI_COMM_WORLD_RANK");
  const char* wanted = getenv("LLAMESH_KILL_RANK");
  return atoi(rank != nullptr ? rank : "0") == atoi(wanted != nullptr ? wanted : "0");
}

/// Counts the call, and kills if it is the chosen one. Returns true if the call must fail.
bool point(const char* path) {
  static const char* at = getenv("LLAMESH_KILL_AT");
  static const char* read_only = getenv("LLAMESH_READ_ONLY");
  if (at == nullptr || getenv("LLAMESH_KILL_ARMED") == nullptr || !this_rank()) return false;
  if (read_only != nullptr && strncmp(path, read_only, strlen(read_only)) != 0) return false;
  const int call = ++calls;
  if (read_only == nullptr && call == atoi(at)) kill(getpid(), SIGKILL);
  if (read_only == nullptr || atoi(at) == 0 || call < atoi(at)) return false;
  errno = EROFS;
  return true;
}

bool on_disk(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 && (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode));
}

/// Counts a call on an open file.
bool point(int fd) {
  if (!on_disk(fd)) return false;
  char link[64];
  char path[4096] = {};
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  if (readlink(link, path, sizeof(path) - 1) < 0) path[0] = 0;
  return point(path);
}

struct Report {
  ~Report() {
    if (getenv("LLAMESH_KILL_AT") != nullptr && this_rank())
      printf("kill points: %d\n", calls.load());
  }
} report;

template <class F>
F next(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

}  // namespace

#define INTERPOSE_FD(result, name, parameters, arguments)       \
  extern "C" result name parameters {                           \
    static const auto real = next<result(*) parameters>(#name); \
    if (point(fd)) return -1;                                   \
    return real arguments;                                      \
  }
#define INTERPOSE(result, name, path, parameters, arguments)    \
  extern "C" result name parameters {                           \
    static const auto real = next<result(*) parameters>(#name); \
    if (point(path)) return -1;                                 \
    return real arguments;                                      \
  }

INTERPOSE_FD(ssize_t, write, (int fd, const void* data, size_t n), (fd, data, n))
INTERPOSE_FD(ssize_t, pwrite, (int fd, const void* data, size_t n, off_t at), (fd, data, n, at))
INTERPOSE_FD(ssize_t, pwrite64, (int fd, const void* data, size_t n, off_t at), (fd, data, n, at))
INTERPOSE_FD(ssize_t, writev, (int fd, const iovec* parts, int n), (fd, parts, n))
INTERPOSE_FD(ssize_t, pwritev, (int fd, const iovec* parts, int n, off_t at), (fd, parts, n, at))
INTERPOSE_FD(int, fsync, (int fd), (fd))
INTERPOSE_FD(int, ftruncate, (int fd, off_t size), (fd, size))
INTERPOSE_FD(int, ftruncate64, (int fd, off_t size), (fd, size))
INTERPOSE(int, rename, from, (const char* from, const char* to), (from, to))
INTERPOSE(int, renameat2, from, (int a, const char* from, int b, const char* to, unsigned flags),
          (a, from, b, to, flags))
INTERPOSE(int, mkdir, path, (const char* path, mode_t mode), (path, mode))
INTERPOSE(int, unlink, path, (const char* path), (path))
INTERPOSE(int, unlinkat, path, (int folder, const char* path, int flags), (folder, path, flags))
