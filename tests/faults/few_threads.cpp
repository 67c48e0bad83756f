// A library to preload into a rank: it allows 40 new threads and no more. (RLIMIT_NPROC does not
// apply to root, and counts a user's processes, not a test's.)
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*work)(void*), void* argument) {
  static std::atomic<int> started = 0;
  if (++started > 40) return EAGAIN;
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, attributes, work, argument);
}
