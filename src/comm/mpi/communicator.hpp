#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/calls/members.hpp"

namespace llamesh::comm {

/// An owned MPI communicator: a group of ranks with its own message context. Move-only.
///
/// Its collectives are the control plane, for small host values: every rank in the group calls them
/// in the same order. They poll with backoff (yield, then short sleeps), so that a waiting rank
/// does not take a computing rank's core. MPI errors throw with MPI's text. Only one thread at a
/// time may use a communicator; give another thread a duplicate().
///
/// `purpose` names the reason for a call ("the loss") in the line that reports a hang; the text
/// outlives the call.
class Communicator {
 public:
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  ~Communicator();

  int rank() const;
  int size() const;
  const std::shared_ptr<const Members>& members() const;

  /// Calls MPI_Comm_dup: the same group with its own message context. Collective.
  Communicator duplicate() const;
  /// Groups the ranks with the same `color`, ordered by `key`, under this communicator's name or a
  /// new one. Collective.
  Communicator split(int color, int key, const std::string& name = "") const;
  /// Groups the ranks that share memory with this one (MPI_Comm_split_type SHARED). Collective.
  Communicator split_shared_memory() const;

  void barrier(const char* purpose = "") const;
  /// Sums in rank order, so every rank gets the same bits.
  double sum(double value, const char* purpose = "") const;
  std::int64_t sum(std::int64_t value, const char* purpose = "") const;
  std::int64_t max(std::int64_t value, const char* purpose = "") const;
  std::int64_t min(std::int64_t value, const char* purpose = "") const;
  /// Returns each rank's value, by rank.
  std::vector<std::int64_t> all_gather(std::int64_t value, const char* purpose = "") const;
  std::vector<std::string> all_gather(std::string_view text) const;
  /// Returns root's text on every rank.
  std::string broadcast(std::string text, int root = 0) const;

  /// MPI handle for this layer and for parallel HDF5 (comm/mpi/mpi.hpp).
  struct Handle;
  const Handle& handle() const { return *handle_; }
  explicit Communicator(std::unique_ptr<Handle> handle);

 private:
  std::unique_ptr<Handle> handle_;
};

/// Runs `phase` on every rank in the group and agrees on the outcome. If it threw anywhere, every
/// rank throws: the lowest failing rank the original error, the others a PeerFailure. So one rank
/// reports, all exit with the same code, and no rank waits for a failed one.
void agree(const Communicator& group, const std::function<void()>& phase,
           const char* purpose = "the outcome of a phase");

/// Runs `phase` on rank 0 only, like agree(), and broadcasts its text.
std::string on_rank_0(const Communicator& group, const std::function<std::string()>& phase);

}  // namespace llamesh::comm
