#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <thread>

namespace llamesh::ops::cpu {

/// The main thread, which runs static initialization.
inline const std::thread::id main_thread = std::this_thread::get_id();

/// Returns true if the calling thread may open an OpenMP team: only the main thread computes. A
/// stream worker runs its (small) kernels alone, because a second team would compete with the first
/// for cores.
inline bool may_open_team() {
  return std::this_thread::get_id() == main_thread;
}

/// Returns the number of threads in a team.
int max_threads();

/// Calls body(first, last) for consecutive blocks of at most `block` items out of `count`, spread
/// evenly over threads. Blocks do not depend on the number of threads. The body must not throw.
template <class Body>
void for_each_block(std::int64_t count, std::int64_t block, const Body& body) {
  const auto blocks = (count + block - 1) / block;
#pragma omp parallel for schedule(static) if (blocks > 1 && may_open_team())
  for (std::int64_t i = 0; i < blocks; ++i) body(i * block, std::min(count, (i + 1) * block));
}

/// Calls body(i) for tasks with uneven cost, each on the next free thread. If there are no more
/// tasks than threads, thread i always runs task i, so the other threads keep no scratch. Rethrows
/// an exception from a body (e.g. out of scratch memory) after all tasks have ended.
template <class Body>
void for_each_task(std::int64_t count, const Body& body) {
  std::exception_ptr error;  // no exception may leave the parallel region
  const auto run = [&](std::int64_t i) {
    try {
      body(i);
    } catch (...) {
#pragma omp critical(llamesh_error_of_task)
      error = std::current_exception();
    }
  };
  if (count <= max_threads()) {
#pragma omp parallel for schedule(static, 1) if (count > 1 && may_open_team())
    for (std::int64_t i = 0; i < count; ++i) run(i);
  } else {
#pragma omp parallel for schedule(dynamic) if (may_open_team())
    for (std::int64_t i = 0; i < count; ++i) run(i);
  }
  if (error) std::rethrow_exception(error);
}

/// Returns the rows per block for which a block touches about `elements` elements.
inline std::int64_t rows_per_block(std::int64_t cols, std::int64_t elements = 16384) {
  return std::max<std::int64_t>(1, elements / std::max<std::int64_t>(1, cols));
}

}  // namespace llamesh::ops::cpu
