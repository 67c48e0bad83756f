#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/calls/collective_call.hpp"
#include "comm/calls/flight_record.hpp"
#include "comm/calls/members.hpp"
#include "core/trace.hpp"

namespace llamesh::comm {

/// A collective that a thread of this process, or its GPU, is in.
struct CollectiveInProgress {
  std::shared_ptr<const Members> members;
  CollectiveCall call;
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
};

/// A record that a collective is in progress, for the object's lifetime. Takes a lock and allocates
/// nothing. The hang diagnosis reads it. Any thread.
class OpenCollective {
 public:
  /// `ticket`: the flight record's. call.number 0: takes the next one among these members.
  /// `traced`: its end also ends a trace event.
  OpenCollective(std::shared_ptr<const Members> members, const CollectiveCall& call,
                 std::int64_t ticket, Traced traced = Traced::yes);
  ~OpenCollective();
  OpenCollective(const OpenCollective&) = delete;
  OpenCollective& operator=(const OpenCollective&) = delete;

 private:
  friend std::vector<CollectiveInProgress> collectives_in_progress();

  CollectiveInProgress entered_;
  std::int64_t ticket_;
  Traced traced_;
};

/// A record that the calling thread is in a collective, for the object's lifetime. Unless traced,
/// allocates nothing. Any thread.
class InCollective {
 public:
  /// `ticket`: the flight record's, if the call was already recorded; 0: records it now.
  InCollective(const std::shared_ptr<const Members>& members, const CollectiveCall& call,
               std::int64_t ticket = 0);
  /// Enters a control-plane call, for this purpose or "".
  InCollective(const std::shared_ptr<const Members>& members, const char* kind, const char* purpose)
      : InCollective(members, CollectiveCall::of(kind, purpose)) {}
  InCollective(const InCollective&) = delete;
  InCollective& operator=(const InCollective&) = delete;

 private:
  OpenCollective open_;
  TraceRange range_;
};

/// Returns the collectives on all threads and on the GPU, earliest first. Numbers are the same on
/// all ranks in a group.
std::vector<CollectiveInProgress> collectives_in_progress();

/// Returns how many collectives with these members this process has entered so far.
std::int64_t collectives_entered(std::uint64_t members_id);

}  // namespace llamesh::comm
