#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llamesh::comm {

/// Who a communicator's ranks are.
struct Members {
  std::string name;        ///< "world", or that of a mesh axis, for messages
  std::uint64_t id = 0;    ///< the same on all of them, and of no other communicator
  std::vector<int> ranks;  ///< by rank in it: the rank in the world
};

/// Owns an MPI communicator: a group of ranks with a message space of its own. Move-only.
///
/// The collective calls here are the control plane: small host values, every rank of the group
/// calls, in the same order. They poll politely (yield, then short sleeps), so that a rank that
/// waits does not take the core of one that computes. Any failure of MPI is thrown with MPI's own
/// text. Only one thread at a time may use a communicator; give another thread a duplicate().
///
/// `purpose` says what a call is for ("the loss"), in the line that reports a hang; the text
/// outlives the call.
class Communicator {
 public:
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  ~Communicator();

  int rank() const;
  int size() const;
  const std::shared_ptr<const Members>& members() const;

  /// The same group with a message space of its own. Collective.
  Communicator duplicate() const;
  /// The ranks that gave the same `color`, in the order of `key`, under this communicator's name or
  /// another one. Collective.
  Communicator split(int color, int key, const std::string& name = "") const;
  /// The ranks that share memory with this one (MPI_Comm_split_type SHARED). Collective.
  Communicator split_shared_memory() const;

  void barrier(const char* purpose = "") const;
  /// Sums in rank order: every rank gets the same bits.
  double sum(double value, const char* purpose = "") const;
  std::int64_t sum(std::int64_t value, const char* purpose = "") const;
  std::int64_t max(std::int64_t value, const char* purpose = "") const;
  std::int64_t min(std::int64_t value, const char* purpose = "") const;
  /// What each rank gave, by rank.
  std::vector<std::int64_t> all_gather(std::int64_t value, const char* purpose = "") const;
  std::vector<std::string> all_gather(std::string_view text) const;
  /// Root's text, on every rank.
  std::string broadcast(std::string text, int root = 0) const;

  /// Access to the MPI handle for this layer and for parallel HDF5 (comm/mpi.hpp).
  struct Handle;
  const Handle& handle() const { return *handle_; }
  explicit Communicator(std::unique_ptr<Handle> handle);

 private:
  std::unique_ptr<Handle> handle_;
};

/// Runs `phase` on every rank of the group and agrees on the outcome. When it threw anywhere, every
/// rank throws: the lowest rank on which it failed the original error, the others a PeerFailure. So
/// one rank reports, all leave by the same exit code, and nobody waits for a rank that gave up.
void agree(const Communicator& group, const std::function<void()>& phase,
           const char* purpose = "the outcome of a phase");

/// Runs `phase` on rank 0 alone, as agree() does, and gives its text to all.
std::string on_rank_0(const Communicator& group, const std::function<std::string()>& phase);

}  // namespace llamesh::comm
