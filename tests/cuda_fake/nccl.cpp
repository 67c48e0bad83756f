#include <mpi.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/dtype.hpp"
#include "fake_stream.hpp"

// The part of NCCL that llamesh calls, faked over MPI. A communicator is a duplicate of MPI's.
// Calls return before they are done, as on non-blocking communicators (some with ncclSuccess all
// the same), and collectives run in their stream. A call's outputs are valid once
// ncclCommGetAsyncError() has reported it done; the next call before that is an error. Sums are
// rounded to the dtype at each hop around the ring, as in NCCL.
//
// FAKE_NCCL_BREAKS=N: the process's Nth collective never ends and raises an asynchronous error; the
// first three on each communicator, and its first between pairs, which allocate its buffers, do not
// count.
// FAKE_NCCL_MIB=N, FAKE_NCCL_PAIRS_MIB=N: these buffers take N MiB of the GPU (0).
// FAKE_NCCL_WINDOWS=0: windows are unavailable, as in NCCL without peer access between a node's
// GPUs.

struct ncclComm {
  MPI_Comm mpi = MPI_COMM_NULL;
  int rank = 0, size = 1;
  std::atomic<int> polls_until_done{0};
  std::function<void()> deliver;  // stores a call's outputs once it is done
  std::atomic<int> windows{0};
  std::atomic<bool> broken{false}, aborted{false};
  int collectives = 0, exchanges = 0;
  void *buffers = nullptr, *pair_buffers = nullptr;
};

namespace {

using llamesh::bf16;

constexpr int polls = 3;  // until a call is done

ncclResult_t begun(ncclComm_t comm) {
  comm->polls_until_done = polls;
  return ncclInProgress;
}

/// Returns true if the last call has been polled to completion.
bool ready(ncclComm_t comm) {
  return comm->polls_until_done <= 0;
}

[[noreturn]] void misuse(const char* what) {
  std::fprintf(stderr, "fake NCCL: %s\n", what);
  std::abort();
}

/// Waits without taking the core from computing threads.
void wait(MPI_Request request) {
  for (int done = 0; done == 0;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

std::size_t size_of(ncclDataType_t type) {
  return type == ncclInt8 ? 1 : type == ncclBfloat16 ? 2 : 4;
}

std::vector<char> gathered(ncclComm_t comm, const void* mine, std::size_t bytes) {
  std::vector<char> own(static_cast<const char*>(mine), static_cast<const char*>(mine) + bytes);
  std::vector<char> all(bytes * static_cast<std::size_t>(comm->size));
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallgather(own.data(), static_cast<int>(bytes), MPI_BYTE, all.data(), static_cast<int>(bytes),
                 MPI_BYTE, comm->mpi, &request);
  wait(request);
  return all;
}

template <class T>
void sum_ranks(void* to, const std::vector<char>& all, std::size_t first, std::size_t count,
               std::size_t stride, int size) {
  for (std::size_t i = 0; i < count; ++i) {
    T sum(0.0F);
    for (int r = 0; r < size; ++r) {
      T part(0.0F);
      const auto at = (static_cast<std::size_t>(r) * stride + first + i) * sizeof(T);
      std::memcpy(&part, all.data() + at, sizeof part);
      sum = T(static_cast<float>(sum) + static_cast<float>(part));
    }
    std::memcpy(static_cast<char*>(to) + i * sizeof(T), &sum, sizeof sum);
  }
}

/// to[i] = the sum over ranks of their elements at first + i.
void sum(ncclComm_t comm, void* to, const std::vector<char>& all, std::size_t first,
         std::size_t count, std::size_t stride, ncclDataType_t type) {
  if (type == ncclBfloat16)
    sum_ranks<bf16>(to, all, first, count, stride, comm->size);
  else
    sum_ranks<float>(to, all, first, count, stride, comm->size);
}

/// Returns true if a rank's part is at its in-place position within the whole, as NCCL requires, or
/// entirely outside it.
bool in_place_or_apart(ncclComm_t comm, const void* part, const void* whole, std::size_t bytes) {
  const auto at = reinterpret_cast<std::uintptr_t>(part);
  const auto first = reinterpret_cast<std::uintptr_t>(whole);
  const auto end = first + bytes * static_cast<std::size_t>(comm->size);
  return at == first + bytes * static_cast<std::size_t>(comm->rank) || at + bytes <= first ||
         at >= end;
}

/// Sends and receives since ncclGroupStart().
struct PeerTransfer {
  bool is_send;
  void* data;
  int bytes;
  int peer;
};
struct Group {
  bool open = false;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<PeerTransfer> transfers;
};
thread_local Group group;

ncclResult_t add_to_group(bool is_send, void* data, std::size_t bytes, int peer, ncclComm_t comm,
                          cudaStream_t stream) {
  if (!group.open || !ready(comm) || (group.comm != nullptr && group.comm != comm))
    return ncclInvalidArgument;
  group.comm = comm;
  group.stream = stream;
  group.transfers.push_back({is_send, data, static_cast<int>(bytes), peer});
  return ncclSuccess;
}

/// Runs a group. Like NCCL, does not compare the sizes of a send and its receive.
void transfer(ncclComm_t comm, const std::vector<PeerTransfer>& transfers) {
  std::vector<MPI_Request> requests;
  for (const auto& [is_send, data, bytes, peer] : transfers) {
    auto* const request = &requests.emplace_back();
    if (is_send)
      MPI_Isend(data, bytes, MPI_BYTE, peer, 0, comm->mpi, request);
    else
      MPI_Irecv(data, bytes, MPI_BYTE, peer, 0, comm->mpi, request);
  }
  for (auto& request : requests) wait(request);
}

std::atomic<std::int64_t> collectives{0};  // over all kinds and communicators
constexpr int first_ones = 3;              // of a communicator, which do not count
constexpr const char* no_error = "fake";
std::atomic<const char*> last_error{no_error};

/// Allocates a communicator's buffers with the first collective that needs them.
bool has_buffers(void*& buffers, const char* size) {
  const char* mib = std::getenv(size);
  const auto bytes = static_cast<std::size_t>(mib ? std::atoll(mib) : 0) << 20U;
  if (bytes == 0 || buffers != nullptr || fake_cuda::allocate(&buffers, bytes)) return true;
  last_error = "Cuda failure 2 'out of memory'";
  return false;
}

void release_buffers(ncclComm_t comm) {
  for (auto* buffers : {&comm->buffers, &comm->pair_buffers})
    if (*buffers != nullptr) fake_cuda::release(std::exchange(*buffers, nullptr));
}

template <class Work>
ncclResult_t collective(ncclComm_t comm, cudaStream_t stream, const Work& work,
                        bool is_exchange = false) {
  if (!ready(comm)) return ncclInvalidArgument;
  if (!has_buffers(comm->buffers, "FAKE_NCCL_MIB")) return ncclUnhandledCudaError;
  if (is_exchange && !has_buffers(comm->pair_buffers, "FAKE_NCCL_PAIRS_MIB"))
    return ncclUnhandledCudaError;
  if (is_exchange ? comm->exchanges++ == 0 : comm->collectives++ < first_ones) {
    fake_cuda::enqueue(stream, work);
    return begun(comm);
  }
  const char* breaks = std::getenv("FAKE_NCCL_BREAKS");
  const auto number = ++collectives;
  if (number == 1) fake_cuda::count_waits_from_now();
  if (number == (breaks ? std::atoll(breaks) : -1)) {
    fake_cuda::enqueue(stream, [comm] {
      comm->broken = true;
      while (!comm->aborted) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    });
    return begun(comm);
  }
  fake_cuda::enqueue(stream, work);
  return begun(comm);
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error"
                                   : "an error of the fake NCCL";
}
const char* ncclGetLastError(ncclComm_t /*comm*/) {
  return last_error;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id->internal, 7, sizeof id->internal);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int size, int rank, int count,
                                      ncclUniqueId* ids, ncclConfig_t* /*config*/) {
  if (count != 1 || ids->internal[0] != 7 || ids->internal[sizeof ids->internal - 1] != 7)
    return ncclInvalidArgument;
  *comm = new ncclComm;
  MPI_Comm_dup(MPI_COMM_WORLD, &(*comm)->mpi);
  (*comm)->rank = rank;
  (*comm)->size = size;
  return begun(*comm);
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made,
                           ncclConfig_t* /*config*/) {
  if (!ready(comm)) return ncclInvalidArgument;
  *made = nullptr;
  MPI_Comm group = MPI_COMM_NULL;
  MPI_Comm_split(comm->mpi, color == NCCL_SPLIT_NOCOLOR ? MPI_UNDEFINED : color, key, &group);
  if (group != MPI_COMM_NULL) {
    auto* const child = new ncclComm;
    child->mpi = group;
    MPI_Comm_rank(group, &child->rank);
    MPI_Comm_size(group, &child->size);
    comm->deliver = [made, child] { *made = child; };
  }
  begun(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  if (comm->broken) {
    *state = ncclRemoteError;
    return ncclSuccess;
  }
  const bool done = comm->polls_until_done <= 0 || --comm->polls_until_done <= 0;
  if (done && comm->deliver) std::exchange(comm->deliver, nullptr)();
  *state = done ? ncclSuccess : ncclInProgress;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return ready(comm) ? begun(comm) : ncclInvalidArgument;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!ready(comm)) return ncclInvalidArgument;
  if (comm->windows != 0) misuse("a communicator is destroyed before its windows");
  release_buffers(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->aborted = true;
  release_buffers(comm);
  return ncclSuccess;
}

/// Allocates whole pages, like the driver's virtual memory management.
ncclResult_t ncclMemAlloc(void** data, std::size_t bytes) {
  constexpr std::size_t page = std::size_t{2} << 20U;
  return fake_cuda::allocate(data, (bytes + page - 1) / page * page) ? ncclSuccess
                                                                     : ncclUnhandledCudaError;
}
/// Unlike cudaFree(), waits for nothing.
ncclResult_t ncclMemFree(void* data) {
  fake_cuda::release(data);
  return ncclSuccess;
}
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* /*data*/, std::size_t /*bytes*/,
                                    ncclWindow_t* window, int /*flags*/) {
  const char* windows = std::getenv("FAKE_NCCL_WINDOWS");
  if (windows && std::string_view(windows) == "0") return ncclSuccess;
  if (!ready(comm)) return ncclInvalidArgument;
  ++comm->windows;
  comm->deliver = [comm, window] { *window = reinterpret_cast<ncclWindow_t>(comm); };
  begun(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  if (window != reinterpret_cast<ncclWindow_t>(comm)) misuse("no such window");
  --comm->windows;
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void* mine, void* whole, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  if (!in_place_or_apart(comm, mine, whole, count * size_of(type))) return ncclInvalidArgument;
  return collective(comm, stream, [=] {
    const auto all = gathered(comm, mine, count * size_of(type));
    std::memcpy(whole, all.data(), all.size());
  });
}
ncclResult_t ncclReduceScatter(const void* parts, void* mine, std::size_t count,
                               ncclDataType_t type, ncclRedOp_t /*op*/, ncclComm_t comm,
                               cudaStream_t stream) {
  if (!in_place_or_apart(comm, mine, parts, count * size_of(type))) return ncclInvalidArgument;
  return collective(comm, stream, [=] {
    const auto whole = count * static_cast<std::size_t>(comm->size);
    const auto all = gathered(comm, parts, whole * size_of(type));
    sum(comm, mine, all, count * static_cast<std::size_t>(comm->rank), count, whole, type);
  });
}
ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t /*op*/, ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, [=] {
    sum(comm, to, gathered(comm, from, count * size_of(type)), 0, count, count, type);
  });
}
ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, [=] {
    const auto bytes = count * size_of(type);
    std::vector<char> data(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibcast(data.data(), static_cast<int>(bytes), MPI_BYTE, root, comm->mpi, &request);
    wait(request);
    std::memcpy(to, data.data(), bytes);
  });
}

ncclResult_t ncclGroupStart() {
  if (group.open) return ncclInvalidUsage;
  group.open = true;
  return ncclSuccess;
}
ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return add_to_group(true, const_cast<void*>(data), count * size_of(type), peer, comm, stream);
}
ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add_to_group(false, data, count * size_of(type), peer, comm, stream);
}
ncclResult_t ncclGroupEnd() {
  if (!group.open) return ncclInvalidUsage;
  const auto ended = std::exchange(group, {});
  if (ended.transfers.empty()) return ncclSuccess;
  return collective(
      ended.comm, ended.stream,
      [comm = ended.comm, transfers = ended.transfers] { transfer(comm, transfers); },
      /*is_exchange=*/true);
}

}  // extern "C"
