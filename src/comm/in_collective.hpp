#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "core/trace.hpp"

namespace llamesh::comm {

/// A record that the calling thread is in a collective (on a GPU: enqueues one), for the object's
/// lifetime. Takes a lock and, unless traced, allocates nothing. The hang diagnosis reads it. Any
/// thread.
class InCollective {
 public:
  /// `kind`: "all-gather". `subject`: its unit or purpose, or "". Both texts outlive the object.
  /// `ticket`: the flight record's, if the call was already recorded; 0: records it now.
  InCollective(std::shared_ptr<const Members> members, const char* kind, const char* subject,
               std::int64_t ticket = 0);
  ~InCollective();
  InCollective(const InCollective&) = delete;
  InCollective& operator=(const InCollective&) = delete;

 private:
  friend std::vector<struct OpenCollective> open_collectives();

  std::shared_ptr<const Members> members_;
  const char* kind_;
  const char* subject_;
  std::chrono::steady_clock::time_point since_;
  std::int64_t ticket_;
  std::int64_t number_ = 0;
  TraceRange range_;
};

/// A collective that a thread in this process is in.
struct OpenCollective {
  std::shared_ptr<const Members> members;
  std::int64_t number;  ///< index among these members' collectives, from 1, the same on all ranks
  std::string kind;     ///< "all-gather"
  std::string subject;  ///< "layers.3"
  std::string what;     ///< "all-gather of layers.3 along shard"
  std::chrono::steady_clock::time_point since;
};

/// Returns those on all threads, earliest first.
std::vector<OpenCollective> open_collectives();

/// Returns how many collectives with these members this process has entered so far.
std::int64_t collectives_entered(std::uint64_t members_id);

}  // namespace llamesh::comm
