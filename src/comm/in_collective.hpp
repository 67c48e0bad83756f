#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "core/trace.hpp"

namespace llamesh::comm {

/// Records that the calling thread is in a collective, for as long as the object lives, or on a GPU
/// enqueues one; takes a lock and, unless it is traced, allocates nothing. Read by the search for
/// what a rank waits for. Any thread.
class InCollective {
 public:
  /// `kind`: "all-gather". `subject`: what it is of, a unit or a purpose, or "". Both texts outlive
  /// the object. `ticket`: of the flight record where it was asked for before; 0: it is asked for
  /// now.
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

/// A collective that a thread of this process is in.
struct OpenCollective {
  std::shared_ptr<const Members> members;
  std::int64_t number;  ///< of these members' collectives, from 1, the same on all ranks
  std::string kind;     ///< "all-gather"
  std::string subject;  ///< "layers.3"
  std::string what;     ///< "all-gather of layers.3 along shard"
  std::chrono::steady_clock::time_point since;
};

/// Those of all threads, the one that was entered first coming first.
std::vector<OpenCollective> open_collectives();

/// How many collectives of these members this process has entered so far.
std::int64_t collectives_entered(std::uint64_t members_id);

}  // namespace llamesh::comm
