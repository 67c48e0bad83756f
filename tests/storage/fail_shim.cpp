// Preloaded into the ranks of a run (LD_PRELOAD), it makes one call of the rank LLAMESH_FAIL_RANK
// (0 without it) fail: LLAMESH_FAIL="CALL K HOW" is the K-th CALL. CALL is open, write, pwrite,
// fsync, rename, ftruncate or mkdir, of files whose paths begin with LLAMESH_FAIL_BELOW; or mmap,
// or new (of at least a KiB, which throws), of the program itself, not of libraries; or lockfile, a
// file that MPI-IO creates there. HOW is ENOSPC, EIO, EINTR or ENOMEM; `short`: a write takes half
// of its bytes; or a number: the call is made so many seconds later. At its end the rank appends
// "CALL COUNT" of each to the file LLAMESH_FAIL_COUNTS.
#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <new>
#include <utility>

#include "interpose.hpp"

namespace llamesh::test {
namespace {

enum Call {
  open_call,
  write_call,
  pwrite_call,
  fsync_call,
  rename_call,
  ftruncate_call,
  mkdir_call,
  mmap_call,
  new_call,
  lockfile_call,
  call_count
};
constexpr const char* call_names[] = {"open",      "write", "pwrite", "fsync", "rename",
                                      "ftruncate", "mkdir", "mmap",   "new",   "lockfile"};
constexpr std::size_t least_bytes = 1024;  // of new

/// What LLAMESH_FAIL asks for. It has no constructor: memory is asked for before any runs.
struct Fault {
  bool ready;
  bool here;
  int call, k, error;
  double seconds;
  char below[PATH_MAX];
} fault;
std::atomic<int> counts[call_count];

const char* environment(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

void set_up() {
  fault.ready = true;
  fault.here = rank_of_process() == atoi(environment("LLAMESH_FAIL_RANK"));
  snprintf(fault.below, sizeof(fault.below), "%s", environment("LLAMESH_FAIL_BELOW"));
  char call[16] = {};
  char how[16] = {};
  fault.call = call_count;
  if (sscanf(environment("LLAMESH_FAIL"), "%15s %d %15s", call, &fault.k, how) != 3) return;
  for (int i = 0; i < call_count; ++i)
    if (strcmp(call, call_names[i]) == 0) fault.call = i;
  for (const auto& [name, error] :
       {std::pair{"ENOSPC", ENOSPC}, {"EIO", EIO}, {"EINTR", EINTR}, {"ENOMEM", ENOMEM}})
    if (strcmp(how, name) == 0) fault.error = error;
  fault.seconds = atof(how);
}

struct Report {
  ~Report() {
    FILE* out = fault.here ? fopen(environment("LLAMESH_FAIL_COUNTS"), "a") : nullptr;
    if (out == nullptr) return;
    for (int i = 0; i < call_count; ++i) fprintf(out, "%s %d\n", call_names[i], counts[i].load());
    fclose(out);
  }
} report;

/// Counts the call; true when it is the one, and waits first where that is what is asked for.
bool is_the_one(Call call) {
  if (!fault.ready) set_up();
  if (!fault.here || ++counts[call] != fault.k || call != fault.call) return false;
  if (fault.seconds > 0) usleep(static_cast<useconds_t>(1e6 * fault.seconds));
  return fault.seconds == 0;
}

bool is_the_one(Call call, const char* path) {
  if (!fault.ready) set_up();
  return strncmp(path, fault.below, strlen(fault.below)) == 0 && is_the_one(call);
}

bool is_the_one(Call call, int fd) {
  return is_the_one(call, path_of(fd).c_str());
}

/// Whether the code at this address is the program's own.
bool is_own(const void* code) {
  static const void* const program = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<const void*>(getauxval(AT_ENTRY)),
           &info);  // NOLINT(performance-no-int-to-ptr)
    return info.dli_fbase;
  }();
  Dl_info info{};
  return dladdr(code, &info) != 0 && info.dli_fbase == program;
}

bool is_in_mpi_io(const void* code) {
  Dl_info info{};
  return dladdr(code, &info) != 0 && strstr(info.dli_fname, "mca_") != nullptr;
}

bool is_superblock(const void* code, off_t at) {
  return at == 0 && is_in_mpi_io(code);
}

/// MPI-IO's opening of a file that is there is left alone.
bool is_failing_open(const void* code, const char* path, int flags) {
  if (!is_in_mpi_io(code)) return is_the_one(open_call, path);
  return (flags & O_CREAT) != 0 && is_the_one(lockfile_call, path);
}

int fail() {
  errno = fault.error;
  return -1;
}

/// A write that is the one: fails, or where it has no error to fail with, takes half of the bytes.
template <class Write>
ssize_t spoil_write(size_t bytes, Write write) {
  return fault.error != 0 ? fail() : write((bytes + 1) / 2);
}

}  // namespace
}  // namespace llamesh::test

using namespace llamesh::test;

#define INTERPOSE(type, name, call, of, parameters, arguments) \
  extern "C" type name parameters {                            \
    static const auto real = next<type parameters>(#name);     \
    return is_the_one(call, of) ? fail() : real arguments;     \
  }
#define INTERPOSE_OPEN(name, parameters, ...)                                                   \
  extern "C" int name parameters {                                                              \
    static const auto real = next<int parameters>(#name);                                       \
    va_list more;                                                                               \
    va_start(more, flags);                                                                      \
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;        \
    va_end(more);                                                                               \
    return is_failing_open(__builtin_return_address(0), path, flags) ? fail()                   \
                                                                     : real(__VA_ARGS__, mode); \
  }
#define INTERPOSE_PWRITE(name)                                                          \
  extern "C" ssize_t name(int fd, const void* data, size_t bytes, off_t at) {           \
    static const auto real = next<ssize_t(int, const void*, size_t, off_t)>(#name);     \
    if (is_superblock(__builtin_return_address(0), at) || !is_the_one(pwrite_call, fd)) \
      return real(fd, data, bytes, at);                                                 \
    return spoil_write(bytes, [&](size_t some) { return real(fd, data, some, at); });   \
  }
#define INTERPOSE_PWRITEV(name)                                                             \
  extern "C" ssize_t name(int fd, const iovec* parts, int count, off_t at) {                \
    static const auto real = next<ssize_t(int, const iovec*, int, off_t)>(#name);           \
    if (is_superblock(__builtin_return_address(0), at) || !is_the_one(pwrite_call, fd))     \
      return real(fd, parts, count, at);                                                    \
    return spoil_write(parts->iov_len,                                                      \
                       [&](size_t some) { return pwrite(fd, parts->iov_base, some, at); }); \
  }
#define INTERPOSE_MMAP(name)                                                                   \
  extern "C" void* name(void* at, size_t bytes, int rights, int flags, int fd, off_t offset) { \
    static const auto real = next<void*(void*, size_t, int, int, int, off_t)>(#name);          \
    if (is_own(__builtin_return_address(0)) && is_the_one(mmap_call)) {                        \
      fail();                                                                                  \
      return MAP_FAILED;                                                                       \
    }                                                                                          \
    return real(at, bytes, rights, flags, fd, offset);                                         \
  }

INTERPOSE_OPEN(open, (const char* path, int flags, ...), path, flags)
INTERPOSE_OPEN(open64, (const char* path, int flags, ...), path, flags)
INTERPOSE_OPEN(openat, (int at, const char* path, int flags, ...), at, path, flags)
INTERPOSE_OPEN(openat64, (int at, const char* path, int flags, ...), at, path, flags)
INTERPOSE_PWRITE(pwrite)
INTERPOSE_PWRITE(pwrite64)
INTERPOSE_PWRITEV(pwritev)
INTERPOSE_PWRITEV(pwritev64)
INTERPOSE_MMAP(mmap)
INTERPOSE_MMAP(mmap64)
INTERPOSE(int, fsync, fsync_call, fd, (int fd), (fd))
INTERPOSE(int, fdatasync, fsync_call, fd, (int fd), (fd))
INTERPOSE(int, ftruncate, ftruncate_call, fd, (int fd, off_t size), (fd, size))
INTERPOSE(int, ftruncate64, ftruncate_call, fd, (int fd, off_t size), (fd, size))
INTERPOSE(int, mkdir, mkdir_call, path, (const char* path, mode_t mode), (path, mode))
INTERPOSE(int, rename, rename_call, from, (const char* from, const char* to), (from, to))
INTERPOSE(int, renameat2, rename_call, from,
          (int a, const char* from, int b, const char* to, unsigned int flags),
          (a, from, b, to, flags))

extern "C" ssize_t write(int fd, const void* data, size_t bytes) {
  static const auto real = next<ssize_t(int, const void*, size_t)>("write");
  if (!is_the_one(write_call, fd)) return real(fd, data, bytes);
  return spoil_write(bytes, [&](size_t some) { return real(fd, data, some); });
}

void* operator new(std::size_t bytes) {
  if (bytes >= least_bytes && is_own(__builtin_return_address(0)) && is_the_one(new_call))
    throw std::bad_alloc();
  void* at = malloc(bytes == 0 ? 1 : bytes);
  if (at == nullptr) throw std::bad_alloc();
  return at;
}
