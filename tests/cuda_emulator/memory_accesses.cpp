#include <cstddef>

#include "race_detector.hpp"

/// The compiler's -fsanitize=thread inserts a call before each access to memory that other threads
/// may see. The calls are meant for ThreadSanitizer's library, which is not linked here.
namespace {

using llamesh::emulator::RaceDetector;

void reads(const void* at, std::size_t bytes) {
  if (auto* races = RaceDetector::watching()) races->read(at, bytes);
}
void writes(const void* at, std::size_t bytes) {
  if (auto* races = RaceDetector::watching()) races->write(at, bytes);
}

}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier)
#define LLAMESH_ACCESS(size)                    \
  void __tsan_read##size(void* at) {            \
    reads(at, size);                            \
  }                                             \
  void __tsan_write##size(void* at) {           \
    writes(at, size);                           \
  }                                             \
  void __tsan_unaligned_read##size(void* at) {  \
    reads(at, size);                            \
  }                                             \
  void __tsan_unaligned_write##size(void* at) { \
    writes(at, size);                           \
  }

extern "C" {
LLAMESH_ACCESS(1)
LLAMESH_ACCESS(2)
LLAMESH_ACCESS(4)
LLAMESH_ACCESS(8)
LLAMESH_ACCESS(16)
void __tsan_read_range(void* at, std::size_t bytes) {
  reads(at, bytes);
}
void __tsan_write_range(void* at, std::size_t bytes) {
  writes(at, bytes);
}
int __tsan_atomic32_fetch_add(volatile int* at, int number, int /*order*/) {  // from shared_ptr
  return __atomic_fetch_add(at, number, __ATOMIC_SEQ_CST);
}
void __tsan_init() {}
void __tsan_func_entry(void* /*caller*/) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void** /*at*/, void* /*value*/) {}
void __tsan_vptr_read(void** /*at*/) {}
}
// NOLINTEND(bugprone-reserved-identifier)
