#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>

#include "comm/calls/collective_call.hpp"
#include "comm/mpi/communicator.hpp"
#include "core/tensor.hpp"
#include "device/buffer.hpp"
#include "device/stream.hpp"

namespace llamesh::comm {

/// Returns the same ranks under another id: collectives on a stream's worker have their own order,
/// separate from those that a rank calls on its communicator.
std::shared_ptr<const Members> data_plane(const Members& group);

/// Order in which GPUs add up.
enum class SumOrder : std::uint8_t {
  fastest,  ///< as NCCL's algorithm
  tree,     ///< by the balanced binary tree over the ranks, a power of two, as CPUs always do
};

/// Data plane for one mesh axis: collectives over the ranks that differ only in that axis.
///
/// Each object has its own stream, so its collectives run in call order; every rank makes the same
/// calls in the same order. A call starts once `after` is complete and returns an event for its
/// end. Tensors are dense and must stay alive until then. Results are bit-identical from run to run
/// and, if ranks share a result, between ranks.
///
/// Buffers from allocate_*() take the fast path (on CPUs within a node an MPI shared-memory window,
/// without copies); any other memory works too.
///
/// The public functions check, record and count a call, and enqueue it. A transport derives from
/// this class and only moves the data.
class Collectives {
 public:
  virtual ~Collectives();

  int rank() const { return rank_; }
  int size() const { return size_; }
  device::Stream& stream() { return stream_; }
  /// Sets the unit that the next calls are for, for messages; the text outlives them.
  void set_subject(const char* subject) { subject_ = subject; }

  /// Allocates a buffer for all_gather: size() equal ranges with `bytes_per_rank` (a multiple of
  /// 64) each. Ranks on a node may share its memory: before its all_gather a rank writes only its
  /// own range. Each rank is charged 1/size() of shared memory. Initially zero. Collective.
  virtual device::Buffer allocate_gathered(std::int64_t bytes_per_rank) = 0;
  /// Returns true if all ranks on the axis share one copy of an allocate_gathered() buffer. A
  /// rank's state can then stay there permanently, and gathering it moves no data.
  virtual bool shares_gathered() const { return size_ == 1; }

  /// Allocates this rank's buffer for data that it sends: in reduce_scatter, all_reduce, all_to_all
  /// and send_recv. Initially zero. Collective, with equal sizes.
  virtual device::Buffer allocate_symmetric(std::int64_t bytes) = 0;
  /// Frees a buffer from allocate_symmetric() before this object ends. No collective uses it any
  /// more. Collective.
  virtual void free_symmetric(device::Buffer buffer) { buffer = {}; }
  /// Connects all pairs of ranks at start, for all_to_all and send_recv, which would else take the
  /// memory for it in their first call. Collective.
  virtual void connect_pairs() {}

  /// Sets whole[r * n, (r + 1) * n) to rank r's `mine` (n elements), cast to whole's dtype, for all
  /// r. `mine` may be its own range in `whole`. Other ranks may read the old contents of `whole`
  /// until their `after` is complete.
  device::Event all_gather(Tensor whole, Tensor mine, const device::Event& after);

  /// Sets or adds to mine (n) the sum over ranks q of q's parts[r * n, (r + 1) * n), with r this
  /// rank. `parts` is fp32 or bf16, summed in fp32 in a fixed order; `mine` is fp32, or bf16 like
  /// parts when not accumulating. If size() is 1, `mine` may be `parts` itself. Consumes `parts`:
  /// its contents after the event are undefined.
  device::Event reduce_scatter(Tensor mine, Tensor parts, Accumulate accumulate,
                               const device::Event& after);

  /// Sets sum to the sum over all ranks' data, bit-identical on all of them. Both are fp32 or both
  /// bf16, summed in fp32 in a fixed order. `sum` may be `data`. Consumes `data`.
  device::Event all_reduce(Tensor sum, Tensor data, const device::Event& after);
  /// The same in place.
  device::Event all_reduce(Tensor data, const device::Event& after);

  /// Sets data to root's data.
  device::Event broadcast(Tensor data, int root, const device::Event& after);

  /// Sets received[q * n, (q + 1) * n) to rank q's sent[r * n, (r + 1) * n), with r this rank, for
  /// all q. Both tensors have size() * n elements and the same dtype, and do not overlap.
  device::Event all_to_all(Tensor received, Tensor sent, const device::Event& after);

  /// The same with unequal parts, in rank order and without gaps: sent_counts[q] elements go to
  /// rank q, received_counts[q] come from it. On CPUs, and on GPUs with keep_fingerprint(), a
  /// rank's event fails with an internal error that gives both numbers if they differ from q's
  /// sent_counts[r]; the other ranks are not disturbed.
  device::Event all_to_all(Tensor received, std::span<const std::int64_t> received_counts,
                           Tensor sent, std::span<const std::int64_t> sent_counts,
                           const device::Event& after);

  /// Sends `sent` to rank `to` and sets `received` to what rank `from` sends here. Every rank calls
  /// it; one without such a peer passes CollectiveCall::none and an empty tensor. The dtype is the
  /// same on all ranks. Sizes may differ between pairs; wrong ones are reported as in all_to_all,
  /// on GPUs only by a rank that both sends and receives.
  device::Event send_recv(Tensor received, int from, Tensor sent, int to,
                          const device::Event& after);

  /// Returns false if any of its collectives was aborted. On a GPU whose link or peer broke,
  /// aborted collectives complete normally but leave garbage in their tensors.
  virtual bool healthy() { return true; }

  /// Returns the bytes that this rank has sent to (or had read by) other ranks so far, by the
  /// formulas for bandwidth-optimal collectives with B bytes over S ranks: all-gather,
  /// reduce-scatter and all-to-all B (S-1)/S, all-reduce 2 B (S-1)/S, broadcast B on the root. With
  /// sizes by peer: the bytes for other ranks.
  std::int64_t bytes_sent() const { return bytes_sent_.load(); }

  /// Starts keeping this rank's calls for check_fingerprints().
  void keep_fingerprint();
  bool keeps_fingerprint() const { return keeps_fingerprint_; }
  const std::shared_ptr<const Members>& members() const { return members_; }

  /// Returns this rank's total seconds in collectives on CPUs, waits for other ranks included.
  double seconds() const { return 1e-9 * static_cast<double>(nanoseconds_.load()); }
  /// Returns the total seconds that waits for their events blocked the compute stream; on a GPU, up
  /// to its current progress.
  double seconds_exposed() const;

 protected:
  explicit Collectives(const Communicator& group);
  /// For a simulated group, without communicator.
  Collectives(int rank, int size);
  const char* subject() const { return subject_; }
  /// Waits for the stream's work and ends its worker. If an exception unwinds this thread, first
  /// cancels waits for other ranks, since those will not arrive. For a transport's destructor.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  // A transport moves the data as the public functions describe. They are called in the stream,
  // with arguments that were checked.
  virtual void move_all_gather(const CollectiveCall& call, const Tensor& whole,
                               const Tensor& mine) = 0;
  virtual void move_reduce_scatter(const CollectiveCall& call, const Tensor& mine,
                                   const Tensor& parts, Accumulate accumulate) = 0;
  virtual void move_all_reduce(const CollectiveCall& call, const Tensor& sum,
                               const Tensor& data) = 0;
  virtual void move_broadcast(const CollectiveCall& call, const Tensor& data) = 0;
  /// Sends sent[q] to each rank q, and receives its part for this rank as received[q]. If
  /// call.by_peer is set, q may send another number of bytes: check_received() then reports it.
  virtual void move_parts(const CollectiveCall& call, const PeerParts& received,
                          const PeerParts& sent) = 0;

  CollectiveCall call_of(const char* kind, const Tensor& tensor) const;
  device::Event submit_parts(CollectiveCall call, PeerParts received, PeerParts sent,
                             const device::Event& after);
  /// Records a call, counts the `bytes` that it sends, and enqueues move(call) after `after`.
  template <class Move>
  device::Event submit(const CollectiveCall& call, std::int64_t bytes, const device::Event& after,
                       Move move);

  std::shared_ptr<const Members> members_;  ///< null: simulated
  int rank_;
  int size_;
  bool keeps_fingerprint_ = false;
  const char* subject_ = "";
  std::atomic<std::int64_t> bytes_sent_{0};
  std::atomic<std::int64_t> nanoseconds_{0};  ///< in collectives
  device::Stream stream_;
};

}  // namespace llamesh::comm
