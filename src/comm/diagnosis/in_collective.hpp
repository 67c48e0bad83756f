#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/mesh/communicator.hpp"
#include "comm/transports/collective_call.hpp"
#include "core/trace.hpp"

namespace llamesh::comm {

/// A collective that a thread in this process is in.
struct CollectiveInProgress {
  std::shared_ptr<const Members> members;
  CollectiveCall call;
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
};

/// A record that the calling thread is in a collective (on a GPU: enqueues one), for the object's
/// lifetime. Takes a lock and, unless traced, allocates nothing. The hang diagnosis reads it. Any
/// thread.
class InCollective {
 public:
  /// `ticket`: the flight record's, if the call was already recorded; 0: records it now.
  InCollective(std::shared_ptr<const Members> members, const CollectiveCall& call,
               std::int64_t ticket = 0);
  /// Enters a control-plane call, for this purpose or "".
  InCollective(std::shared_ptr<const Members> members, const char* kind, const char* purpose)
      : InCollective(std::move(members), CollectiveCall::of(kind, purpose)) {}
  ~InCollective();
  InCollective(const InCollective&) = delete;
  InCollective& operator=(const InCollective&) = delete;

 private:
  friend std::vector<CollectiveInProgress> collectives_in_progress();

  CollectiveInProgress entered_;
  std::int64_t ticket_;
  TraceRange range_;
};

/// Returns those on all threads, earliest first. Numbers are the same on all ranks in a group.
std::vector<CollectiveInProgress> collectives_in_progress();

/// Returns how many collectives with these members this process has entered so far.
std::int64_t collectives_entered(std::uint64_t members_id);

}  // namespace llamesh::comm
