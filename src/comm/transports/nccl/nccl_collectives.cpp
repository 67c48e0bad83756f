#include "comm/transports/nccl/nccl_collectives.hpp"

#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "comm/transports/host_reduce.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "device/cuda/runtime.hpp"
#include "device/device.hpp"
#include "ops/ops.hpp"

namespace llamesh::comm {
namespace {

using device::cuda::native;

ncclDataType_t type_of(const Tensor& tensor) {
  switch (tensor.dtype()) {
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::i32:
      return ncclInt32;
    case DType::i8:
      return ncclInt8;
    case DType::e4m3:
      break;  // only operands of a product are FP8
  }
  expects(false, "no NCCL type for {}", name_of(tensor.dtype()));
  return ncclNumTypes;
}

std::size_t count_of(const Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel());
}

/// Sets NCCL's environment, except variables that the user has set.
void set_nccl_defaults() {
  // Kernels on different axes run concurrently. NCCL then requires them to start in call order, the
  // same on all ranks, so that they cannot deadlock.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
  // NVLink switches sum in an order that changes from run to run (NVIDIA/nccl#1497).
  setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
}

/// Returns an id for each thousand ranks, made by one of them: all ranks find each other through
/// the process that made their id. Collective.
std::vector<ncclUniqueId> unique_ids(const Communicator& world) {
  constexpr int ranks_of_id = 1024;
  std::string mine;
  agree(world, [&] {
    if (world.rank() % ranks_of_id != 0) return;
    ncclUniqueId made;
    check(ncclGetUniqueId(&made), "ncclGetUniqueId");
    mine.assign(made.internal, sizeof made.internal);
  });
  std::vector<ncclUniqueId> ids;
  for (const auto& id : world.all_gather(mine))
    if (!id.empty()) std::memcpy(ids.emplace_back().internal, id.data(), id.size());
  return ids;
}

/// Returns the config for every communicator. They never block, although NCCL then starts a thread
/// for each call (its group.cc):
/// - A blocking call has no time limit. The first on a communicator connects its ranks, and a later
///   one may wait for room in the queue to a kernel whose peer is gone (enqueue.cc).
/// - It cannot be aborted safely either. ncclCommAbort() waits for a call in progress before it
///   frees the communicator, but only if that does not block (ncclGroupJobAbort).
///
/// They share no resources (splitShare): sharing serializes their collectives (NCCL's enqueue.cc
/// orders each launch after the last on a stream that belongs to the resources), so two axes could
/// not be busy at the same time.
ncclConfig_t non_blocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

/// Returns the result of calls that NCCL runs as one; `calls` returns that of the first to fail.
template <class Calls>
ncclResult_t in_group(const Calls& calls) {
  auto result = ncclGroupStart();
  if (result == ncclSuccess) result = calls();
  const auto ended = ncclGroupEnd();
  return result == ncclSuccess ? ended : result;
}

/// Sends `out` to a rank and sets `in` to what it sends, unless they are empty. In a group.
ncclResult_t exchange_with(int peer, const Tensor& out, const Tensor& in, ncclComm_t comm,
                           cudaStream_t cuda) {
  auto result = ncclSuccess;
  if (out.numel() > 0) result = ncclSend(out.data(), count_of(out), type_of(out), peer, comm, cuda);
  if (in.numel() > 0 && result == ncclSuccess)
    result = ncclRecv(in.data(), count_of(in), type_of(in), peer, comm, cuda);
  return result;
}

/// Makes the first collectives on a communicator, with which NCCL allocates its buffers: now, and
/// not in the first step, when the run has filled the GPU. Those for pairs of ranks come with
/// connect_pairs(), unless sums need them.
void take_buffers(Nccl::Connection& connection, const Communicator& group, SumOrder order) {
  const device::Buffer buffer(group.size() * std::int64_t{4});
  const Tensor all = buffer.tensor(DType::f32, {group.size()});
  const Tensor mine = all.slice(group.rank(), 1);
  auto& stream = device::compute_stream();
  const auto call = [&](const char* name, const auto& collective) {
    connection.call(name, "", [&](ncclComm_t comm) { return collective(comm, native(stream)); });
  };
  call("the first all-gather", [&](ncclComm_t comm, cudaStream_t cuda) {
    return ncclAllGather(mine.data(), all.data(), 1, ncclFloat32, comm, cuda);
  });
  call("the first reduce-scatter", [&](ncclComm_t comm, cudaStream_t cuda) {
    return ncclReduceScatter(all.data(), mine.data(), 1, ncclFloat32, ncclSum, comm, cuda);
  });
  call("the first all-reduce", [&](ncclComm_t comm, cudaStream_t cuda) {
    return ncclAllReduce(mine.data(), mine.data(), 1, ncclFloat32, ncclSum, comm, cuda);
  });
  for (int step = 1; order == SumOrder::tree && step < group.size(); step *= 2) {
    const int peer = group.rank() ^ step;
    call("the first exchange", [&](ncclComm_t comm, cudaStream_t cuda) {
      return in_group([&] { return exchange_with(peer, mine, all.slice(peer, 1), comm, cuda); });
    });
  }
  stream.record().wait();
}

/// Copies `from` to `to`, cast to its dtype; does nothing if they are the same memory.
void convert(device::Stream& stream, const Tensor& to, const Tensor& from) {
  if (to.data() == from.data() || to.numel() == 0) return;
  to.dtype() == from.dtype() ? device::copy_bytes(stream, to, from) : ops::copy(stream, to, from);
}

}  // namespace

NcclCollectives::NcclCollectives(const Communicator& group,
                                 std::shared_ptr<Nccl::Connection> connection, SumOrder order)
    : Collectives(group), connection_(std::move(connection)), order_(order), checks_(group) {}

NcclCollectives::~NcclCollectives() {
  finish();
}

device::Buffer NcclCollectives::allocate_gathered(std::int64_t bytes_per_rank) {
  return allocate_symmetric(bytes_per_rank * size());
}

device::Buffer NcclCollectives::allocate_symmetric(std::int64_t bytes) {
  return connection_ ? registered_buffer(connection_, bytes) : device::Buffer(bytes);
}

template <class Call>
void NcclCollectives::call(const char* name, const Call& call) {
  if (!connection_) return;
  connection_->call(name, subject(), [&](ncclComm_t comm) { return call(comm, native(stream())); });
}

std::byte* NcclCollectives::scratch(std::int64_t bytes) {
  if (scratch_.bytes() < bytes) {
    stream().record().wait();  // for the earlier sums that use it
    const device::ScopedMemoryTag use(device::MemoryUse::scratch);
    scratch_ = {};  // free first
    scratch_ = device::Buffer(bytes);
  }
  return scratch_.data();
}

void NcclCollectives::exchange(const char* name, int peer, std::span<const Tensor> sent,
                               std::span<const Tensor> received) {
  if (sent.empty() && received.empty()) return;
  call(name, [&](ncclComm_t comm, cudaStream_t cuda) {
    return in_group([&] {
      auto result = ncclSuccess;
      for (const Tensor& out : sent)
        if (result == ncclSuccess)
          result = ncclSend(out.data(), count_of(out), type_of(out), peer, comm, cuda);
      for (const Tensor& in : received)
        if (result == ncclSuccess)
          result = ncclRecv(in.data(), count_of(in), type_of(in), peer, comm, cuda);
      return result;
    });
  });
}

/// Sets this rank's part to the sum over all ranks' (recursive halving): first neighbors exchange
/// and add up halves, then pairs of neighbors what these have left, and so on. Other parts are then
/// undefined.
void NcclCollectives::sum_as_tree(const Part& part) {
  for (int step = 1; step < size(); step *= 2) {
    std::vector<Tensor> sent, sums, received;
    std::int64_t bytes = 0;
    for (int p = 0; p < size(); ++p) {
      const auto differs = static_cast<unsigned>(p) ^ static_cast<unsigned>(rank());
      const bool is_left = differs % static_cast<unsigned>(step) == 0;  // by earlier steps
      if (!is_left || part(p).numel() == 0) continue;
      const bool goes = (differs & static_cast<unsigned>(step)) != 0;
      (goes ? sent : sums).push_back(part(p));
      if (!goes) bytes += part(p).bytes();
    }
    auto* data = scratch(bytes);
    for (const Tensor& sum : sums) {
      received.push_back(Tensor(data, sum.dtype(), {sum.numel()}));
      data += sum.bytes();
    }
    exchange("reduction", rank() ^ step, sent, received);
    for (std::size_t i = 0; i < sums.size(); ++i) ops::add(stream(), sums[i], received[i]);
  }
}

/// Gathers what sum_as_tree() has left on each rank, by its steps backwards.
void NcclCollectives::gather(const Part& part) {
  for (int step = size() / 2; step > 0; step /= 2) {
    const int peer = rank() ^ step;
    const auto gathered_by = [&](int owner) {
      std::vector<Tensor> parts;
      for (int p = 0; p < size(); ++p) {
        const auto differs = static_cast<unsigned>(p) ^ static_cast<unsigned>(owner);
        if (differs % (2 * static_cast<unsigned>(step)) == 0 && part(p).numel() > 0)
          parts.push_back(part(p));
      }
      return parts;
    };
    exchange("gather of sums", peer, gathered_by(rank()), gathered_by(peer));
  }
}

void NcclCollectives::move_all_gather(const CollectiveCall& /*call*/, const Tensor& whole,
                                      const Tensor& mine) {
  const Tensor own = whole.slice(rank() * mine.numel(), mine.numel());
  convert(stream(), own, mine);
  call("all-gather", [&](ncclComm_t comm, cudaStream_t cuda) {
    return ncclAllGather(own.data(), whole.data(), count_of(own), type_of(own), comm, cuda);
  });
}

void NcclCollectives::move_reduce_scatter(const CollectiveCall& /*call*/, const Tensor& mine,
                                          const Tensor& parts, Accumulate accumulate) {
  const Part part = [&](int owner) { return parts.slice(owner * mine.numel(), mine.numel()); };
  const Tensor sum = part(rank());
  if (order_ == SumOrder::tree) {
    sum_as_tree(part);
  } else {
    // In place: both ends are then in the window of `parts`, as NCCL's fastest kernels require, and
    // no scratch is needed.
    call("reduce-scatter", [&](ncclComm_t comm, cudaStream_t cuda) {
      return ncclReduceScatter(parts.data(), sum.data(), count_of(sum), type_of(sum), ncclSum, comm,
                               cuda);
    });
  }
  if (accumulate == Accumulate::yes)
    ops::add(stream(), mine, sum);
  else
    convert(stream(), mine, sum);
}

void NcclCollectives::move_all_reduce(const CollectiveCall& /*call*/, const Tensor& sum,
                                      const Tensor& data) {
  if (order_ == SumOrder::tree) {
    const Part part = [&](int owner) {
      const auto [first, count] = slice_of(data.numel(), owner, size());
      return data.reshape({data.numel()}).slice(first, count);
    };
    sum_as_tree(part);
    gather(part);
  } else {
    // In place, as above.
    call("all-reduce", [&](ncclComm_t comm, cudaStream_t cuda) {
      return ncclAllReduce(data.data(), data.data(), count_of(data), type_of(data), ncclSum, comm,
                           cuda);
    });
  }
  convert(stream(), sum, data);
}

void NcclCollectives::move_broadcast(const CollectiveCall& asked, const Tensor& data) {
  call("broadcast", [&](ncclComm_t comm, cudaStream_t cuda) {
    return ncclBroadcast(data.data(), data.data(), count_of(data), type_of(data), asked.root, comm,
                         cuda);
  });
}

void NcclCollectives::move_parts(const CollectiveCall& asked, const PeerParts& received,
                                 const PeerParts& sent) {
  // The host waits for the peer here, which may itself be waiting for what this rank sends later.
  const bool one_way = asked.to == CollectiveCall::none || asked.from == CollectiveCall::none;
  if (keeps_fingerprint() && asked.by_peer != 0 && !one_way)
    check_received(asked, checks_.group(), received, checks_.announce(asked, sent));
  convert(stream(), received[rank()], sent[rank()]);
  exchange_with_all(asked.to == CollectiveCall::every ? "all-to-all" : "send-recv", received, sent);
}

void NcclCollectives::exchange_with_all(const char* name, const PeerParts& received,
                                        const PeerParts& sent) {
  call(name, [&](ncclComm_t comm, cudaStream_t cuda) {
    return in_group([&] {
      auto result = ncclSuccess;
      for (int peer = 0; peer < size() && result == ncclSuccess; ++peer)
        if (peer != rank()) result = exchange_with(peer, sent[peer], received[peer], comm, cuda);
      return result;
    });
  });
}

void NcclCollectives::connect_pairs() {
  if (!connection_ || std::exchange(has_pairs_, true)) return;
  const auto bytes = size() * size_of(DType::f32);
  const device::Buffer received(bytes), sent(bytes);
  const auto parts = [&](const device::Buffer& buffer) {
    return PeerParts(buffer.tensor(DType::f32, {size()}), size());
  };
  exchange_with_all("the first exchange", parts(received), parts(sent));
  stream().record().wait();
}

Nccl::Nccl(const Communicator& world, SumOrder order) : order_(order) {
  if (world.size() == 1) return;  // NCCL would cost time, memory and a network interface
  set_nccl_defaults();
  const auto ids = unique_ids(world);
  ncclConfig_t config = non_blocking();
  ncclComm_t made = nullptr;
  agree(world, [&] {
    check(ncclCommInitRankScalable(&made, world.size(), world.rank(), static_cast<int>(ids.size()),
                                   const_cast<ncclUniqueId*>(ids.data()), &config),
          "ncclCommInitRankScalable");
    world_ = std::make_unique<Connection>(made, "world", world.size());
  });
  world_ranks_ = world.size();
  world_rank_ = world.rank();
}

Nccl::~Nccl() = default;
Nccl::Nccl(Nccl&&) noexcept = default;
Nccl& Nccl::operator=(Nccl&&) noexcept = default;

std::unique_ptr<Collectives> Nccl::axis(const std::string& axis, const Communicator& group,
                                        int color) const {
  if (!world_) return std::make_unique<NcclCollectives>(group, nullptr, order_);
  const bool alone = group.size() == 1;
  ncclConfig_t config = non_blocking();
  ncclComm_t made = nullptr;
  // Every rank joins the split, including those in groups of one.
  world_->call("ncclCommSplit", "", [&](ncclComm_t comm) {
    return ncclCommSplit(comm, alone ? NCCL_SPLIT_NOCOLOR : color, group.rank(), &made, &config);
  });
  auto connection = alone ? nullptr : std::make_shared<Connection>(made, axis, world_ranks_);
  if (connection) {
    const auto free = device::free_gpu_memory_bytes();
    take_buffers(*connection, group, order_);
    if (world_rank_ == 0)
      spdlog::info("NCCL's buffers along {} take {} of the GPU", axis,
                   bytes_text(free - device::free_gpu_memory_bytes()));
  }
  return std::make_unique<NcclCollectives>(group, std::move(connection), order_);
}

std::string nccl_version() {
  int version = 0;
  check(ncclGetVersion(&version), "ncclGetVersion");
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace llamesh::comm
