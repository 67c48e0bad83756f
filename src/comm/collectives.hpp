#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "comm/communicator.hpp"
#include "comm/contract.hpp"
#include "comm/flight_record.hpp"
#include "comm/in_collective.hpp"
#include "core/accumulate.hpp"
#include "core/tensor.hpp"
#include "device/buffer.hpp"
#include "device/stream.hpp"

namespace llamesh::comm {

/// The same ranks under another id: the collectives of a stream's worker have their own order, and
/// those that a rank calls on its communicator another.
std::shared_ptr<const Members> data_plane(const Members& group);

/// The data plane of one mesh axis: collectives over the ranks that differ in that axis only.
///
/// Each object has its own stream, so its collectives run in the order in which they were called;
/// every rank calls the same ones in the same order. A call starts once `after` is complete and
/// returns an event for its end. Tensors are dense and stay alive until then. Results are
/// bit-identical from run to run and, where ranks share a result, between ranks.
///
/// Buffers from allocate_*() take the fast path (on CPUs within a node an MPI shared-memory window,
/// without copies); any other memory works too.
class Collectives {
 public:
  virtual ~Collectives() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  device::Stream& stream() { return stream_; }
  /// Names what the following calls are for (a unit), for messages; the text outlives them.
  void set_subject(const char* subject) { subject_ = subject; }

  /// A buffer of size() equal ranges of `bytes_per_rank` (a multiple of 64) for all_gather. Ranks
  /// of one node may share its memory: before its all_gather a rank writes only its own range.
  /// 1/size() of shared memory is counted as this rank's. Zero at first. Collective.
  virtual device::Buffer allocate_gathered(std::int64_t bytes_per_rank) = 0;
  /// Whether buffers of allocate_gathered() are one copy in memory that all ranks of the axis
  /// share. Then a rank's state can stay there permanently, and gathering it moves no data.
  virtual bool shares_gathered() const { return size_ == 1; }

  /// A buffer of this rank for reduce_scatter and all_reduce. Zero at first. Collective.
  virtual device::Buffer allocate_symmetric(std::int64_t bytes) = 0;

  /// whole[r * n, (r + 1) * n) = rank r's `mine` (n elements), cast to whole's dtype, for all r.
  /// `mine` may be its own range of `whole`. Other ranks may read the former contents of `whole`
  /// until their `after` is complete.
  virtual device::Event all_gather(Tensor whole, Tensor mine, device::Event after) = 0;

  /// mine (n) = or += sum over ranks q of q's parts[r * n, (r + 1) * n), r this rank; parts in
  /// fp32 or bf16, summed in fp32 in a fixed order; mine in fp32, or in bf16 like parts where
  /// nothing is accumulated. When size() is 1, `mine` may be `parts` itself. `parts` is consumed:
  /// its contents after the event are undefined.
  virtual device::Event reduce_scatter(Tensor mine, Tensor parts, Accumulate accumulate,
                                       device::Event after) = 0;

  /// data (fp32) = sum of all ranks' data, bit-identical on all of them.
  virtual device::Event all_reduce(Tensor data, device::Event after) = 0;

  /// data = root's data.
  virtual device::Event broadcast(Tensor data, int root, device::Event after) = 0;

  /// Whether none of its collectives was given up. Those that were, on a GPU whose link or peer
  /// broke, complete like others and leave anything in their tensors.
  virtual bool healthy() { return true; }

  /// Bytes that this rank has sent to (or had read by) each of the others so far, by the formulas
  /// of a bandwidth-optimal collective of B bytes over S ranks: all-gather and reduce-scatter
  /// B (S-1)/S, all-reduce 2 B (S-1)/S, broadcast B on the root.
  std::int64_t bytes_sent() const { return bytes_sent_.load(); }

  /// From now on what this rank calls is kept for check_contract(). Once for an object.
  void keep_contract() {
    if (!contract_) contract_ = std::make_unique<Contract>();
  }
  Contract* contract() const { return contract_.get(); }
  const std::shared_ptr<const Members>& members() const { return members_; }

  /// On CPUs, seconds so far of this rank in its collectives, waits for the other ranks included.
  double seconds() const { return 1e-9 * static_cast<double>(nanoseconds_.load()); }
  /// On CPUs, seconds so far in which the compute stream was blocked by waits for their events.
  double seconds_exposed() const;

 protected:
  explicit Collectives(const Communicator& group)
      : members_(data_plane(*group.members())),
        rank_(group.rank()),
        size_(group.size()),
        stream_(device::Stream::communication()) {}
  /// Of a group without communicator: simulated.
  Collectives(int rank, int size)
      : rank_(rank), size_(size), stream_(device::Stream::communication()) {}
  const char* subject() const { return subject_; }
  void count_sent(std::int64_t bytes) { bytes_sent_ += bytes; }
  /// Enqueues the collective `work` of `whole`, the tensor that is as large on all ranks, after
  /// `after`; records it, and counts the bytes that it sends.
  template <class Work>
  device::Event submit(const char* kind, const Tensor& whole, const device::Event& after,
                       std::int64_t bytes, Work&& work) {
    count_sent(bytes);
    const auto ticket = FlightRecorder::instance().asked(*members_, kind, subject_,
                                                         name_of(whole.dtype()), whole.bytes());
    if (contract_) contract_->note({kind, subject_, whole.dtype(), whole.bytes()});
    stream_.wait(after);
    stream_.run([this, kind, subject = subject_, ticket, work = std::forward<Work>(work)] {
      const InCollective in(members_, kind, subject, ticket);
      const auto start = Clock::now();
      work();
      nanoseconds_ += std::chrono::nanoseconds(Clock::now() - start).count();
    });
    return stream_.record();
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::shared_ptr<const Members> members_;
  int rank_;
  int size_;
  std::unique_ptr<Contract> contract_;
  const char* subject_ = "";
  std::atomic<std::int64_t> bytes_sent_{0};
  std::atomic<std::int64_t> nanoseconds_{0};  ///< in collectives
  device::Stream stream_;
};

}  // namespace llamesh::comm
