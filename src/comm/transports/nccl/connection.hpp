#pragma once

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "comm/mpi/session.hpp"
#include "comm/transports/nccl.hpp"
#include "device/buffer.hpp"

namespace llamesh::comm {

/// Throws with NCCL's own text if a call failed.
void check(ncclResult_t result, const std::string& what);

/// An owned nonblocking NCCL communicator: each call is polled until NCCL has enqueued it, with a
/// time limit. A thread polls for asynchronous errors (a dead peer, a broken link). On one it
/// prints one line and aborts the communicator, and the process ends within seconds, even if the
/// GPU is blocked.
struct Nccl::Connection {
  /// Takes over a communicator that NCCL is still connecting, and waits until it is connected. The
  /// time limit of every call grows with `world_ranks`.
  Connection(ncclComm_t made, std::string axis_name, int world_ranks);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Calls `nccl(communicator)` and polls until NCCL has enqueued it. Reports an error or a timeout
  /// at once, since unwinding may wait for the GPU; then throws a PeerFailure, and the process ends
  /// within seconds. The call's name and subject (a unit, or "") appear in messages and outlive the
  /// connection.
  template <class Call>
  void call(const char* name, const char* subject, const Call& nccl) {
    const std::lock_guard lock(calls_);
    begin(name, subject);
    try {
      settle(nccl(comm_));
    } catch (const Error& error) {
      give_up(error);
      throw PeerFailure(error.code());
    }
  }
  /// Returns true if it works, as far as NCCL knows. Then everything that the GPU completed before
  /// this call was not aborted.
  bool healthy();
  /// Undoes a registration, if any. Never throws, since buffers may be destroyed while an exception
  /// unwinds.
  void deregister(ncclWindow_t window);

 private:
  void begin(const char* name, const char* subject);
  void settle(ncclResult_t result) const;
  void give_up(const Error& error);
  bool finalized();
  void watch();
  std::string describe(ncclResult_t error) const;
  Error failure(ncclResult_t error) const;

  ncclComm_t comm_;
  std::string axis_;
  std::chrono::seconds time_limit_;
  std::atomic<const char*> collective_{"the making"};  // current call, for messages
  std::atomic<const char*> subject_{""};
  std::mutex calls_;      // NCCL allows one thread at a time per communicator
  bool aborted_ = false;  // guarded by calls_
  std::atomic<bool> stop_{false};
  std::thread watcher_;  // last: it uses all of the above
};

/// Allocates from NCCL, initially zero, and registers the memory with a communicator if NCCL can
/// use that (its symmetric kernels). Unlike cudaMalloc() memory, it is freed without waiting for
/// the GPU. Collective over the communicator, with equal sizes.
device::Buffer registered_buffer(const std::shared_ptr<Nccl::Connection>& connection,
                                 std::int64_t bytes);

}  // namespace llamesh::comm
