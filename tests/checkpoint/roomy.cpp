// A library to preload (LD_PRELOAD). It makes every file system appear to have room: free-space
// queries succeed, and then a write finds the disk full, as when other jobs fill it.
#include <dlfcn.h>
#include <sys/statvfs.h>

namespace {

template <class Status>
int roomy(const char* name, const char* path, Status* status) {
  const auto real = reinterpret_cast<int (*)(const char*, Status*)>(dlsym(RTLD_NEXT, name));
  const int result = real(path, status);
  status->f_bavail = status->f_bfree = 1U << 30U;
  return result;
}

}  // namespace

extern "C" int statvfs(const char* path, struct statvfs* status) noexcept {
  return roomy("statvfs", path, status);
}
extern "C" int statvfs64(const char* path, struct statvfs64* status) noexcept {
  return roomy("statvfs64", path, status);
}
