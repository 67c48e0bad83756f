#include "comm/transports/collectives.hpp"

#include <algorithm>
#include <exception>
#include <numeric>
#include <string_view>
#include <utility>

#include "comm/calls/flight_record.hpp"
#include "comm/mpi/backoff.hpp"
#include "core/hash.hpp"
#include "device/queue.hpp"

namespace llamesh::comm {

std::shared_ptr<const Members> data_plane(const Members& group) {
  auto members = group;
  constexpr std::string_view name = "data plane";
  RunningHash hash;
  hash.add(&group.id, sizeof(group.id));
  hash.add(name.data(), name.size());
  members.id = hash.value();
  return std::make_shared<const Members>(std::move(members));
}

Collectives::Collectives(const Communicator& group)
    : members_(data_plane(*group.members())),
      rank_(group.rank()),
      size_(group.size()),
      stream_(device::Stream::communication()) {}

Collectives::Collectives(int rank, int size)
    : rank_(rank), size_(size), stream_(device::Stream::communication()) {}

Collectives::~Collectives() = default;

void Collectives::keep_fingerprint() {
  FlightRecorder::instance().keep_calls(members_->id);
  keeps_fingerprint_ = true;
}

double Collectives::seconds_exposed() const {
  return std::chrono::duration<double>(stream_.queue()->blocked()).count();
}

void Collectives::finish() {
  if (std::uncaught_exceptions() > 0) stop_waiting();
  stream_ = device::Stream::calling_thread();
  FlightRecorder::instance().poll_queued();
}

CollectiveCall Collectives::call_of(const char* kind, const Tensor& tensor) const {
  auto call = CollectiveCall::of(kind, subject_, name_of(tensor.dtype()), tensor.bytes());
  if (members_) call.along(*members_);
  return call;
}

template <class Move>
device::Event Collectives::submit(const CollectiveCall& call, std::int64_t bytes,
                                  const device::Event& after, Move move) {
  bytes_sent_ += bytes;
  stream_.wait(after);
  if (!members_) {  // simulated
    move(call);
    return stream_.record();
  }
  auto& recorder = FlightRecorder::instance();
  stream_.run([this, &recorder, asked = recorder.ask(members_, call), move = std::move(move)] {
    if (stream_.on_gpu()) return recorder.queue(asked, stream_, [&] { move(asked.call); });
    const InCollective in(asked);
    const auto start = Clock::now();
    move(asked.call);
    nanoseconds_ += std::chrono::nanoseconds(Clock::now() - start).count();
  });
  return stream_.record();
}

device::Event Collectives::all_gather(Tensor whole, Tensor mine, const device::Event& after) {
  expects(whole.dense() && mine.dense(), "all_gather needs dense tensors");
  expects(whole.numel() == mine.numel() * size_, "all_gather of {} elements from {} ranks into {}",
          mine.numel(), size_, whole.numel());
  return submit(call_of("all-gather", whole), whole.bytes() / size_ * (size_ - 1), after,
                [=, this](const CollectiveCall& call) { move_all_gather(call, whole, mine); });
}

device::Event Collectives::reduce_scatter(Tensor mine, Tensor parts, Accumulate accumulate,
                                          const device::Event& after) {
  expects(mine.dense() && parts.dense(), "reduce_scatter needs dense tensors");
  expects(parts.numel() == mine.numel() * size_,
          "reduce_scatter of {} elements over {} ranks into {}", parts.numel(), size_,
          mine.numel());
  expects(parts.dtype() != DType::i32 &&
              (mine.dtype() == DType::f32 ||
               (mine.dtype() == parts.dtype() && accumulate == Accumulate::no)),
          "reduce_scatter sums fp32 or bf16 into fp32, or bf16 into bf16 without accumulation, not "
          "{} into {}",
          name_of(parts.dtype()), name_of(mine.dtype()));
  expects(mine.data() != parts.data() || mine.numel() == 0 ||
              (size_ == 1 && accumulate == Accumulate::no && parts.dtype() == DType::f32),
          "reduce_scatter in place needs one rank, fp32 and no accumulation");
  return submit(call_of("reduce-scatter", parts), parts.bytes() / size_ * (size_ - 1), after,
                [=, this](const CollectiveCall& call) {
                  move_reduce_scatter(call, mine, parts, accumulate);
                });
}

device::Event Collectives::all_reduce(Tensor sum, Tensor data, const device::Event& after) {
  expects(sum.dense() && data.dense(), "all_reduce needs dense tensors");
  expects(sum.numel() == data.numel() && sum.dtype() == data.dtype() && sum.dtype() != DType::i32,
          "all_reduce sums as many elements of fp32 or bf16 as it has, not {} of {} into {} of {}",
          data.numel(), name_of(data.dtype()), sum.numel(), name_of(sum.dtype()));
  return submit(call_of("all-reduce", data), 2 * data.bytes() * (size_ - 1) / size_, after,
                [=, this](const CollectiveCall& call) { move_all_reduce(call, sum, data); });
}

device::Event Collectives::all_reduce(Tensor data, const device::Event& after) {
  return all_reduce(data, data, after);
}

device::Event Collectives::broadcast(Tensor data, int root, const device::Event& after) {
  expects(data.dense(), "broadcast needs a dense tensor");
  expects(root >= 0 && root < size_, "broadcast from rank {} of {}", root, size_);
  auto call = call_of("broadcast", data);
  call.root = root;
  return submit(call, rank_ == root && size_ > 1 ? data.bytes() : 0, after,
                [=, this](const CollectiveCall& one) { move_broadcast(one, data); });
}

device::Event Collectives::submit_parts(CollectiveCall call, PeerParts received, PeerParts sent,
                                        const device::Event& after) {
  expects(received.data().dense() && sent.data().dense(), "{} needs dense tensors",
          call.kind.data());
  expects(received.data().dtype() == sent.data().dtype(), "{} of {} into {}", call.kind.data(),
          name_of(sent.data().dtype()), name_of(received.data().dtype()));
  expects(received[rank_].numel() == sent[rank_].numel(),
          "{} of {} elements from a rank to itself, which expects {}", call.kind.data(),
          sent[rank_].numel(), received[rank_].numel());
  const auto bytes = sent.data().bytes() - sent[rank_].bytes();
  return submit(call, bytes, after,
                [this, received = std::move(received), sent = std::move(sent)](
                    const CollectiveCall& one) { move_parts(one, received, sent); });
}

device::Event Collectives::all_to_all(Tensor received, Tensor sent, const device::Event& after) {
  expects(sent.numel() % size_ == 0 && received.numel() == sent.numel(),
          "all_to_all of {} elements over {} ranks into {}", sent.numel(), size_, received.numel());
  return submit_parts(call_of("all-to-all", sent), {received, size_}, {sent, size_}, after);
}

device::Event Collectives::all_to_all(Tensor received,
                                      std::span<const std::int64_t> received_counts, Tensor sent,
                                      std::span<const std::int64_t> sent_counts,
                                      const device::Event& after) {
  for (const auto& [tensor, counts] :
       {std::pair(received, received_counts), std::pair(sent, sent_counts)})
    expects(std::ssize(counts) == size_ &&
                std::reduce(counts.begin(), counts.end()) == tensor.numel() &&
                std::ranges::all_of(counts, [](auto count) { return count >= 0; }),
            "all_to_all over {} ranks with {} counts, whose sum must be {}", size_, counts.size(),
            tensor.numel());
  auto call = call_of("all-to-all", sent);
  call.by_peer = 1;
  return submit_parts(call, {received, received_counts}, {sent, sent_counts}, after);
}

device::Event Collectives::send_recv(Tensor received, int from, Tensor sent, int to,
                                     const device::Event& after) {
  for (const auto& [tensor, peer] : {std::pair(received, from), std::pair(sent, to)})
    expects(peer == CollectiveCall::none ? tensor.numel() == 0 : peer >= 0 && peer < size_,
            "send_recv of {} elements with rank {} of {}", tensor.numel(), peer, size_);
  auto call = call_of("send-recv", sent);
  call.by_peer = 1;
  call.to = to;
  call.from = from;
  return submit_parts(call, {received, size_, from}, {sent, size_, to}, after);
}

}  // namespace llamesh::comm
