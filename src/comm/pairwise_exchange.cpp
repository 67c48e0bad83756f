#include "comm/pairwise_exchange.hpp"

#include <algorithm>
#include <array>

#include "comm/backoff.hpp"
#include "comm/host_reduce.hpp"
#include "comm/mpi.hpp"

namespace llamesh::comm {
namespace {

constexpr std::int64_t piece_bytes = std::int64_t{512} << 10U;  // four fit into an L2 cache
constexpr int in_flight = 4;
constexpr std::int64_t small_bytes = std::int64_t{128} << 10U;  // all-reduce size, over all ranks
constexpr std::int64_t broadcast_chunk_bytes = std::int64_t{64} << 20U;
constexpr int tag = 1;

/// One direction in an exchange: pieces numbered step by step, a few in flight.
class Flow {
 public:
  template <class Post>
  void post_up_to(std::int64_t total, Post&& post) {
    for (; posted_ < total && posted_ - done_ < in_flight; ++posted_) post(posted_, &slot(posted_));
  }
  /// Returns true if the oldest piece in flight is complete; does not yet count it as done.
  bool oldest_complete(std::string_view doing) {
    if (done_ == posted_) return false;
    int complete = 0;
    check(MPI_Test(&slot(done_), &complete, MPI_STATUS_IGNORE), doing);
    return complete != 0;
  }
  std::int64_t done() const { return done_; }
  void finish_oldest() { ++done_; }

 private:
  MPI_Request& slot(std::int64_t piece) {
    return requests_[static_cast<std::size_t>(piece % in_flight)];
  }
  std::int64_t posted_ = 0;
  std::int64_t done_ = 0;
  std::array<MPI_Request, in_flight> requests_{MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL,
                                               MPI_REQUEST_NULL};
};

std::int64_t pieces_of(std::int64_t bytes) {
  return std::max<std::int64_t>(1, (bytes + piece_bytes - 1) / piece_bytes);
}

/// Returns piece `index` of `range`; empty past its end.
Tensor piece_of(const Tensor& range, std::int64_t index) {
  const std::int64_t length = piece_bytes / size_of(range.dtype());
  const std::int64_t first = std::min(index * length, range.numel());
  return range.slice(first, std::min(length, range.numel() - first));
}

/// Returns slice `rank` of `data` when split into `size` equal slices of whole cache lines; the
/// last may be short.
Tensor slice_of(const Tensor& data, int rank, int size) {
  constexpr std::int64_t line = 16;
  const std::int64_t n = ((data.numel() + size - 1) / size + line - 1) / line * line;
  const std::int64_t first = std::min(rank * n, data.numel());
  return data.slice(first, std::min(n, data.numel() - first));
}

}  // namespace

const std::int64_t PairwiseExchange::scratch_bytes = in_flight * piece_bytes;

std::byte* PairwiseExchange::scratch() {
  const device::ScopedMemoryTag use(device::MemoryUse::scratch);
  if (!scratch_) scratch_ = device::Buffer(scratch_bytes);
  return scratch_.data();
}

void PairwiseExchange::exchange(const Range& outgoing, const Range& incoming,
                                const Arrived& arrived) {
  const int size = group_.size();
  const int rank = group_.rank();
  const auto comm = native(group_);
  const auto to = [&](std::int64_t step) { return static_cast<int>((rank + step) % size); };
  const auto from = [&](std::int64_t step) {
    return static_cast<int>((rank - step + size) % size);
  };
  // All steps use the same number of pieces, so that both sides agree. Sizes differ only in an
  // all-reduce's last slice; the longest counts.
  std::int64_t longest = 0;
  for (int peer = 0; peer < size; ++peer)
    longest = std::max({longest, outgoing(peer).bytes(), incoming(peer).bytes()});
  const std::int64_t per_step = pieces_of(longest);
  const std::int64_t total = per_step * (size - 1);
  std::byte* slots = arrived ? scratch() : nullptr;
  const auto landing = [&](std::int64_t i) {
    const Tensor piece = piece_of(incoming(from(1 + i / per_step)), i % per_step);
    if (slots == nullptr) return piece;
    return Tensor(slots + i % in_flight * piece_bytes, piece.dtype(), {piece.numel()});
  };

  Flow sends;
  Flow receives;
  Backoff backoff;
  while (sends.done() < total || receives.done() < total) {
    receives.post_up_to(total, [&](std::int64_t i, MPI_Request* request) {
      const Tensor piece = landing(i);
      check(MPI_Irecv(piece.data(), static_cast<int>(piece.bytes()), MPI_BYTE,
                      from(1 + i / per_step), tag, comm, request),
            "a receive");
    });
    sends.post_up_to(total, [&](std::int64_t i, MPI_Request* request) {
      const int peer = to(1 + i / per_step);
      const Tensor piece = piece_of(outgoing(peer), i % per_step);
      check(MPI_Isend(piece.data(), static_cast<int>(piece.bytes()), MPI_BYTE, peer, tag, comm,
                      request),
            "a send");
    });
    bool moved = false;
    if (receives.oldest_complete("a receive")) {
      const std::int64_t i = receives.done();
      if (arrived) {
        const Tensor piece = landing(i);
        arrived(piece, from(1 + i / per_step),
                i % per_step * (piece_bytes / size_of(piece.dtype())));
      }
      receives.finish_oldest();
      moved = true;
    }
    if (sends.oldest_complete("a send")) {
      sends.finish_oldest();
      moved = true;
    }
    if (moved)
      backoff.reset();
    else
      backoff.pause();
  }
}

void PairwiseExchange::all_gather(const Tensor& whole, const Tensor& mine) {
  const std::int64_t n = mine.numel();
  const Tensor own = whole.slice(group_.rank() * n, n);
  copy_cast(own, mine);
  exchange([&](int) { return own; }, [&](int peer) { return whole.slice(peer * n, n); });
}

void PairwiseExchange::reduce_scatter(const Tensor& mine, const Tensor& parts,
                                      Accumulate accumulate) {
  const std::int64_t n = mine.numel();
  const auto part = [&](int peer) { return parts.slice(peer * n, n); };
  const auto in_fp32 =
      mine.dtype() == DType::f32 ? device::Buffer() : device::Buffer(n * size_of(DType::f32));
  const Tensor sum = mine.dtype() == DType::f32 ? mine : in_fp32.tensor(DType::f32, {n});
  add_to(sum, part(group_.rank()), accumulate);
  exchange(
      part, [&](int) { return part(group_.rank()); },
      [&](const Tensor& piece, int, std::int64_t first) {
        add_to(sum.slice(std::min(first, n), piece.numel()), piece, Accumulate::yes);
      });
  copy_cast(mine, sum);
}

void PairwiseExchange::all_reduce(const Tensor& data) {
  const int size = group_.size();
  if (size == 1) return;
  if (data.bytes() * size <= small_bytes) return all_reduce_small(data);
  const auto slice = [&](int rank) { return slice_of(data, rank, size); };
  const Tensor own = slice(group_.rank());
  exchange(
      slice, [&](int) { return own; },
      [&](const Tensor& piece, int, std::int64_t first) {
        add_to(own.slice(std::min(first, own.numel()), piece.numel()), piece, Accumulate::yes);
      });
  exchange([&](int) { return own; }, slice);
}

void PairwiseExchange::all_reduce_small(const Tensor& data) {
  const std::int64_t n = data.numel();
  const int bytes = static_cast<int>(data.bytes());
  std::byte* all = scratch();
  MPI_Request request = MPI_REQUEST_NULL;
  check(
      MPI_Iallgather(data.data(), bytes, MPI_BYTE, all, bytes, MPI_BYTE, native(group_), &request),
      "an all-reduce");
  wait(request, "an all-reduce");
  for (int r = 0; r < group_.size(); ++r)
    add_to(data, Tensor(all + std::int64_t{r} * bytes, DType::f32, {n}),
           r == 0 ? Accumulate::no : Accumulate::yes);
}

void PairwiseExchange::broadcast(const Tensor& data, int root) {
  if (group_.size() == 1) return;
  const Tensor flat = data.reshape({data.numel()});
  const std::int64_t length = broadcast_chunk_bytes / size_of(data.dtype());
  for (std::int64_t first = 0; first < flat.numel(); first += length) {
    const Tensor piece = flat.slice(first, std::min(length, flat.numel() - first));
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ibcast(piece.data(), static_cast<int>(piece.bytes()), MPI_BYTE, root, native(group_),
                     &request),
          "a broadcast");
    wait(request, "a broadcast");
  }
}

}  // namespace llamesh::comm
