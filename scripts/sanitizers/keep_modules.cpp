// Linked into the tests under AddressSanitizer: libraries that were opened stay open, so that the leak
// check at the end can still name the ones that Open MPI's modules leave, and leaks.txt can match them.
extern "C" int dlclose(void* /*handle*/) {
  return 0;
}
