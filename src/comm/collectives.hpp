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

/// Returns the same ranks under another id: collectives on a stream's worker have their own order,
/// separate from those that a rank calls on its communicator.
std::shared_ptr<const Members> data_plane(const Members& group);

/// Data plane for one mesh axis: collectives over the ranks that differ only in that axis.
///
/// Each object has its own stream, so its collectives run in call order; every rank makes the same
/// calls in the same order. A call starts once `after` is complete and returns an event for its
/// end. Tensors are dense and must stay alive until then. Results are bit-identical from run to run
/// and, if ranks share a result, between ranks.
///
/// Buffers from allocate_*() take the fast path (on CPUs within a node an MPI shared-memory window,
/// without copies); any other memory works too.
class Collectives {
 public:
  virtual ~Collectives() = default;

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

  /// Allocates this rank's buffer for reduce_scatter and all_reduce. Initially zero. Collective.
  virtual device::Buffer allocate_symmetric(std::int64_t bytes) = 0;

  /// Sets whole[r * n, (r + 1) * n) to rank r's `mine` (n elements), cast to whole's dtype, for all
  /// r. `mine` may be its own range in `whole`. Other ranks may read the old contents of `whole`
  /// until their `after` is complete.
  virtual device::Event all_gather(Tensor whole, Tensor mine, device::Event after) = 0;

  /// Sets or adds to mine (n) the sum over ranks q of q's parts[r * n, (r + 1) * n), with r this
  /// rank. `parts` is fp32 or bf16, summed in fp32 in a fixed order; `mine` is fp32, or bf16 like
  /// parts when not accumulating. If size() is 1, `mine` may be `parts` itself. Consumes `parts`:
  /// its contents after the event are undefined.
  virtual device::Event reduce_scatter(Tensor mine, Tensor parts, Accumulate accumulate,
                                       device::Event after) = 0;

  /// Sets data (fp32) to the sum over all ranks' data, bit-identical on all of them.
  virtual device::Event all_reduce(Tensor data, device::Event after) = 0;

  /// Sets data to root's data.
  virtual device::Event broadcast(Tensor data, int root, device::Event after) = 0;

  /// Returns false if any of its collectives was aborted. On a GPU whose link or peer broke,
  /// aborted collectives complete normally but leave garbage in their tensors.
  virtual bool healthy() { return true; }

  /// Returns the bytes that this rank has sent to (or had read by) other ranks so far, by the
  /// formulas for bandwidth-optimal collectives with B bytes over S ranks: all-gather and
  /// reduce-scatter B (S-1)/S, all-reduce 2 B (S-1)/S, broadcast B on the root.
  std::int64_t bytes_sent() const { return bytes_sent_.load(); }

  /// Starts recording this rank's calls for check_contracts(). The first call counts.
  void keep_contract() {
    if (!contract_) contract_ = std::make_unique<Contract>();
  }
  Contract* contract() const { return contract_.get(); }
  const std::shared_ptr<const Members>& members() const { return members_; }

  /// Returns this rank's total seconds in collectives on CPUs, waits for other ranks included.
  double seconds() const { return 1e-9 * static_cast<double>(nanoseconds_.load()); }
  /// Returns the total seconds that waits for their events blocked the compute stream, on CPUs.
  double seconds_exposed() const;

 protected:
  explicit Collectives(const Communicator& group)
      : members_(data_plane(*group.members())),
        rank_(group.rank()),
        size_(group.size()),
        stream_(device::Stream::communication()) {}
  /// For a simulated group, without communicator.
  Collectives(int rank, int size)
      : rank_(rank), size_(size), stream_(device::Stream::communication()) {}
  const char* subject() const { return subject_; }
  void count_sent(std::int64_t bytes) { bytes_sent_ += bytes; }
  /// Enqueues the collective `work` after `after`, records it, and counts the bytes that it sends.
  /// `whole` is its tensor with the same size on all ranks.
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
