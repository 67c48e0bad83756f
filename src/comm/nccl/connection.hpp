#pragma once

#include <nccl.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "comm/nccl.hpp"
#include "comm/session.hpp"
#include "device/buffer.hpp"

namespace llamesh::comm {

/// Throws with NCCL's own text when a call failed.
void check(ncclResult_t result, const std::string& what);

/// Owns a nonblocking NCCL communicator: each call is polled until NCCL has enqueued it, with a
/// time limit. A thread polls for asynchronous errors (a peer that died, a link that broke): then
/// one line is printed, the communicator is aborted, and the process ends within seconds, even if
/// the GPU is blocked.
struct Nccl::Connection {
  /// Takes over a communicator that NCCL is still connecting, and waits until it is connected.
  Connection(ncclComm_t made, std::string axis_name);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Calls `nccl(communicator)` and polls until NCCL has enqueued it. An error or a timeout is
  /// reported at once, since unwinding may wait for the GPU; then it throws a PeerFailure and the
  /// process ends within seconds. The names of the call and of what it is for (a unit, or "")
  /// outlive the connection: messages have them.
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
  /// Whether it works, as far as NCCL knows. What the GPU had completed before the call was not
  /// aborted if so.
  bool healthy();
  /// Undoes a registration, where there was one; throws nothing, since buffers may be destroyed
  /// while an exception unwinds.
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
  std::atomic<const char*> collective_{"the making"};  // the current call, for messages
  std::atomic<const char*> subject_{""};
  std::mutex calls_;      // NCCL allows one thread at a time in a communicator
  bool aborted_ = false;  // guarded by calls_
  std::atomic<bool> stop_{false};
  std::thread watcher_;  // last: it uses all of the above
};

/// Memory that NCCL made, registered with a communicator where NCCL can use that (its symmetric
/// kernels), zero at first. Unlike memory of cudaMalloc() it is freed without waiting for the GPU.
/// Collective over the communicator, at equal size.
device::Buffer registered_buffer(const std::shared_ptr<Nccl::Connection>& connection,
                                 std::int64_t bytes);

}  // namespace llamesh::comm
