// Linked into the tests under the sanitizers: libraries that were opened stay open. So a leak that
// Open MPI's modules leave can still be named, and matched by leaks.txt; and ThreadSanitizer, which
// gives up when a library that threads.txt names is unloaded, goes on.
extern "C" int dlclose(void* /*handle*/) {
  return 0;
}
