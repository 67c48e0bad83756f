#include "comm/transports/pairwise_exchange.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "comm/mpi/backoff.hpp"
#include "comm/mpi/mpi.hpp"
#include "comm/transports/host_reduce.hpp"
#include "core/process.hpp"

namespace llamesh::comm {
namespace {

constexpr std::int64_t piece_bytes = std::int64_t{512} << 10U;  // four fit into an L2 cache
constexpr int in_flight = 4;
constexpr std::int64_t small_bytes = std::int64_t{128} << 10U;  // all-reduce size, over all ranks
constexpr std::int64_t broadcast_chunk_bytes = std::int64_t{64} << 20U;
constexpr int tag = 1;
constexpr int announcement_tag = 2;

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

/// A piece of the range exchanged with `peer`, from its element `first` on.
struct Piece {
  Tensor data;
  int peer;
  std::int64_t first;
};

/// Returns a step's peer, 1 to size - 1; `direction` is 1 for sends and -1 for receives.
int peer_of_step(const Communicator& group, int step, int direction) {
  const int size = group.size();
  if (std::has_single_bit(static_cast<unsigned>(size)))
    return static_cast<int>(static_cast<unsigned>(group.rank()) ^ static_cast<unsigned>(step));
  return (group.rank() + direction * step + size) % size;
}

/// Returns the pieces of range(peer) for every other rank: the first one of each, step by step,
/// then the second ones, and so on. Both sides of a transfer have it in the same place, so the
/// ranks always finish the earliest one, whatever the sizes.
template <class Range>
std::vector<Piece> pieces_by_step(const Communicator& group, int direction, const Range& range) {
  std::vector<Piece> wholes;
  std::int64_t longest = 0;
  for (int step = 1; step < group.size(); ++step) {
    const int peer = peer_of_step(group, step, direction);
    wholes.push_back({range(peer), peer, 0});
    longest = std::max(longest, wholes.back().data.bytes());
  }
  std::vector<Piece> pieces;
  for (std::int64_t at = 0; at < longest; at += piece_bytes)
    for (const auto& [whole, peer, begin] : wholes) {
      const auto first = at / size_of(whole.dtype());
      const auto length = std::min(piece_bytes / size_of(whole.dtype()), whole.numel() - first);
      if (length > 0) pieces.push_back({whole.slice(first, length), peer, first});
    }
  return pieces;
}

/// Elements per piece.
std::int64_t piece_numel(DType dtype) {
  return piece_bytes / size_of(dtype);
}

/// Levels below the root in a binary tree over `leaves`.
int levels_of(int leaves) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(leaves) - 1U));
}

/// Sums pieces that come one by one, by the balanced binary tree over their order: sums over 1, 2,
/// 4, ... pieces wait for their neighbors, as a counter's bits wait for a carry.
class TreeSum {
 public:
  /// `memory` has room for `numel` fp32 elements per level.
  TreeSum(std::byte* memory, int leaves, std::int64_t numel)
      : memory_(memory), leaves_(leaves), numel_(numel) {}

  /// Adds the next leaf. After the last one, sets or adds the sum to `out`.
  void add(const Tensor& leaf, const Tensor& out, Accumulate accumulate) {
    const auto index = static_cast<unsigned>(count_++);
    const bool last = count_ == leaves_;
    const auto waits = [&](int level) { return (index >> static_cast<unsigned>(level) & 1U) != 0; };
    auto sum = leaf;
    int level = 0;
    for (; level < levels_of(leaves_) && (last || waits(level)); ++level) {
      if (!waits(level)) continue;
      const auto neighbor = at(level, leaf.numel());
      add_to(neighbor, sum, Accumulate::yes);
      sum = neighbor;
    }
    if (!last) return copy_cast(at(level, leaf.numel()), sum);
    add_to(out, sum, accumulate);
    count_ = 0;
  }

 private:
  Tensor at(int level, std::int64_t numel) const {
    return {memory_ + level * numel_ * size_of(DType::f32), DType::f32, {numel}};
  }

  std::byte* memory_;
  int leaves_;
  std::int64_t numel_;
  int count_ = 0;
};

}  // namespace

std::int64_t PairwiseExchange::scratch_bytes(int ranks, DType parts) {
  return in_flight * piece_bytes + levels_of(ranks) * piece_numel(parts) * size_of(DType::f32);
}

std::byte* PairwiseExchange::scratch(DType parts) {
  const device::ScopedMemoryTag use(device::MemoryUse::scratch);
  const auto bytes = scratch_bytes(group_.size(), parts);
  if (scratch_.bytes() < bytes) {
    scratch_ = {};  // free first, as kernels do
    scratch_ = device::Buffer(bytes);
  }
  return scratch_.data();
}

void PairwiseExchange::exchange(const Range& outgoing, const Range& incoming,
                                const Arrived& arrived) {
  const auto comm = native(group_);
  const auto to_send = pieces_by_step(group_, 1, outgoing);
  auto to_receive = pieces_by_step(group_, -1, incoming);
  if (arrived && !to_receive.empty()) {
    std::byte* slots = scratch(to_receive.front().data.dtype());
    for (std::int64_t i = 0; i < std::ssize(to_receive); ++i) {
      auto& data = to_receive[static_cast<std::size_t>(i)].data;
      data = Tensor(slots + i % in_flight * piece_bytes, data.dtype(), {data.numel()});
    }
  }

  Flow sends;
  Flow receives;
  Backoff backoff;
  while (sends.done() < std::ssize(to_send) || receives.done() < std::ssize(to_receive)) {
    receives.post_up_to(std::ssize(to_receive), [&](std::int64_t i, MPI_Request* request) {
      const auto& [data, peer, first] = to_receive[static_cast<std::size_t>(i)];
      check(MPI_Irecv(data.data(), static_cast<int>(data.bytes()), MPI_BYTE, peer, tag, comm,
                      request),
            "a receive");
    });
    sends.post_up_to(std::ssize(to_send), [&](std::int64_t i, MPI_Request* request) {
      const auto& [data, peer, first] = to_send[static_cast<std::size_t>(i)];
      check(MPI_Isend(data.data(), static_cast<int>(data.bytes()), MPI_BYTE, peer, tag, comm,
                      request),
            "a send");
    });
    bool moved = false;
    if (receives.oldest_complete("a receive")) {
      const auto& [data, peer, first] = to_receive[static_cast<std::size_t>(receives.done())];
      if (arrived) arrived(data, peer, first);
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

void PairwiseExchange::reduce(const Tensor& mine, const Range& part, Accumulate accumulate) {
  const int rank = group_.rank(), size = group_.size();
  const Tensor own = part(rank);
  if (size == 1) return add_to(mine, own, accumulate);
  const auto dtype = own.dtype();
  TreeSum sum(scratch(dtype) + in_flight * piece_bytes, size, piece_numel(dtype));
  const int first_to_come = peer_of_step(group_, 1, -1);
  exchange(
      part, [&](int) { return own; },
      [&](const Tensor& piece, int peer, std::int64_t first) {
        const Tensor to = mine.slice(first, piece.numel());
        if (peer == first_to_come) sum.add(own.slice(first, piece.numel()), to, accumulate);
        sum.add(piece, to, accumulate);
      });
}

void PairwiseExchange::reduce_scatter(const Tensor& mine, const Tensor& parts,
                                      Accumulate accumulate) {
  const std::int64_t n = mine.numel();
  reduce(
      mine, [&](int peer) { return parts.slice(peer * n, n); }, accumulate);
}

void PairwiseExchange::all_reduce(const Tensor& sum, const Tensor& data) {
  const int size = group_.size();
  if (size == 1) return copy_cast(sum, data);
  // Out of place, the bits are those of reduce_scatter(), whatever the size.
  const bool in_place = sum.data() == data.data() && data.dtype() == DType::f32;
  if (in_place && data.bytes() * size <= small_bytes) return all_reduce_small(data);
  const auto slice = [&](const Tensor& whole, int rank) {
    const auto [first, count] = slice_of(whole.numel(), rank, size);
    return whole.slice(first, count);
  };
  const Tensor own = slice(sum, group_.rank());
  reduce(
      own, [&](int rank) { return slice(data, rank); }, Accumulate::no);
  exchange([&](int) { return own; }, [&](int rank) { return slice(sum, rank); });
}

void PairwiseExchange::all_reduce_small(const Tensor& data) {
  const int bytes = static_cast<int>(data.bytes());
  std::byte* all = scratch(DType::f32);
  MPI_Request request = MPI_REQUEST_NULL;
  check(
      MPI_Iallgather(data.data(), bytes, MPI_BYTE, all, bytes, MPI_BYTE, native(group_), &request),
      "an all-reduce");
  wait(request, "an all-reduce");
  std::vector<const std::byte*> parts;
  for (int r = 0; r < group_.size(); ++r) parts.push_back(all + std::int64_t{r} * bytes);
  sum_parts(data, parts, DType::f32, Accumulate::no);
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

std::vector<SentPart> PairwiseExchange::announce(const CollectiveCall& call,
                                                 const PeerParts& sent) {
  const int rank = group_.rank();
  std::vector<SentPart> mine;
  for (int peer = 0; peer < group_.size(); ++peer)
    mine.push_back({sent[peer].bytes(), sent.offset(peer)});
  // Equal parts: every peer's part for this rank is where this rank's part for itself is.
  if (call.by_peer == 0) return std::vector(mine.size(), mine[static_cast<std::size_t>(rank)]);
  std::vector<SentPart> theirs(mine.size());
  theirs[static_cast<std::size_t>(rank)] = mine[static_cast<std::size_t>(rank)];
  std::vector<MPI_Request> requests;
  const auto post = [&](auto&& start, SentPart& part, int peer) {
    if (peer != rank)
      check(start(&part, 2, MPI_INT64_T, peer, announcement_tag, native(group_),
                  &requests.emplace_back()),
            "the sizes of a send");
  };
  for (int peer = 0; peer < group_.size(); ++peer) {
    const auto p = static_cast<std::size_t>(peer);
    if (call.from == CollectiveCall::every || call.from == peer) post(MPI_Irecv, theirs[p], peer);
    if (call.to == CollectiveCall::every || call.to == peer) post(MPI_Isend, mine[p], peer);
  }
  wait_all(requests, "the sizes of a send");
  return theirs;
}

void PairwiseExchange::move_parts(const CollectiveCall& call, const PeerParts& received,
                                  const PeerParts& sent) {
  const int rank = group_.rank();
  const auto announced = announce(call, sent);
  std::vector<device::Buffer> unexpected(announced.size());
  copy_cast(received[rank], sent[rank]);
  exchange([&](int peer) { return sent[peer]; },
           [&](int peer) {
             const auto p = static_cast<std::size_t>(peer);
             const Tensor part = received[peer];
             if (announced[p].bytes == part.bytes()) return part;
             unexpected[p] = device::Buffer(announced[p].bytes);
             return unexpected[p].tensor(part.dtype(),
                                         {announced[p].bytes / size_of(part.dtype())});
           });
  check_received(call, group_, received, announced);
}

void check_received(const CollectiveCall& call, const Communicator& group,
                    const PeerParts& received, std::span<const SentPart> announced) {
  const auto& ranks = group.members()->ranks;
  for (std::size_t p = 0; p < announced.size(); ++p) {
    const auto expected = received[static_cast<int>(p)].bytes();
    if (announced[p].bytes != expected)
      fail(
          ExitCode::internal_error,
          "rank {} on {} expects {} bytes from rank {} in the {}, but that sends {}: the counts of "
          "the two ranks differ, which is a bug",
          ranks[static_cast<std::size_t>(group.rank())], this_process().host, expected, ranks[p],
          title(call), announced[p].bytes);
  }
}

}  // namespace llamesh::comm
