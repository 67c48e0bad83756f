// Preloaded into a program (LD_PRELOAD), it ends it by SIGKILL at the LLAMESH_KILL_AT-th call that
// changes a file or the names in a folder, before the call is made. With LLAMESH_KILL_AT=0 nothing
// is killed, and the number of calls is printed at the end. Calls count from the moment on at which
// the environment has LLAMESH_KILL_ARMED.
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

namespace {

int calls = 0;

void point() {
  static const char* at = getenv("LLAMESH_KILL_AT");
  if (at == nullptr || getenv("LLAMESH_KILL_ARMED") == nullptr) return;
  if (++calls == atoi(at)) kill(getpid(), SIGKILL);
}

bool on_disk(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 && (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode));
}

struct Report {
  ~Report() {
    if (getenv("LLAMESH_KILL_AT") != nullptr) printf("kill points: %d\n", calls);
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
    if (on_disk(fd)) point();                                   \
    return real arguments;                                      \
  }
#define INTERPOSE(result, name, parameters, arguments)          \
  extern "C" result name parameters {                           \
    static const auto real = next<result(*) parameters>(#name); \
    point();                                                    \
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
INTERPOSE(int, rename, (const char* from, const char* to), (from, to))
INTERPOSE(int, renameat2, (int a, const char* from, int b, const char* to, unsigned flags),
          (a, from, b, to, flags))
INTERPOSE(int, mkdir, (const char* path, mode_t mode), (path, mode))
INTERPOSE(int, unlink, (const char* path), (path))
INTERPOSE(int, unlinkat, (int folder, const char* path, int flags), (folder, path, flags))
