#pragma once

#include <cstdint>

namespace llamesh::device {

/// Address space that a rank takes beside its buffers: oneDNN's code, stacks and malloc()'s arenas
/// of its threads, Open MPI's queues. A run of inputs/tiny.yaml takes 180 MiB with one thread and
/// 250 MiB with two; arenas of 64 MiB that find no room are done without.
std::int64_t library_address_space(int threads);

/// Throws a user error if this process may not map `bytes` more (ulimit -v, ulimit -d). oneDNN,
/// Open MPI and OpenMP end the process where they are refused memory, so they are not let come to
/// that.
void check_address_space(std::int64_t bytes);

}  // namespace llamesh::device
