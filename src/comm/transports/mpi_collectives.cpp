#include "comm/transports/mpi_collectives.hpp"

#include "comm/mpi/exchange.hpp"

namespace llamesh::comm {

MpiCollectives::MpiCollectives(const Communicator& group)
    : Collectives(group), exchange_(group), fingerprint_check_(members()) {}

MpiCollectives::~MpiCollectives() {
  finish();
}

device::Buffer MpiCollectives::allocate_gathered(std::int64_t bytes_per_rank) {
  return device::Buffer(bytes_per_rank * size());
}

device::Buffer MpiCollectives::allocate_symmetric(std::int64_t bytes) {
  return device::Buffer(bytes);
}

void MpiCollectives::move_all_gather(const CollectiveCall& call, const Tensor& whole,
                                     const Tensor& mine) {
  compare(call);
  exchange_.all_gather(whole, mine);
}

void MpiCollectives::move_reduce_scatter(const CollectiveCall& call, const Tensor& mine,
                                         const Tensor& parts, Accumulate accumulate) {
  compare(call);
  exchange_.reduce_scatter(mine, parts, accumulate);
}

void MpiCollectives::move_all_reduce(const CollectiveCall& call, const Tensor& sum,
                                     const Tensor& data) {
  compare(call);
  exchange_.all_reduce(sum, data);
}

void MpiCollectives::move_broadcast(const CollectiveCall& call, const Tensor& data) {
  compare(call);
  exchange_.broadcast(data, call.root);
}

void MpiCollectives::move_parts(const CollectiveCall& call, const PeerParts& received,
                                const PeerParts& sent) {
  compare(call);
  exchange_.move_parts(call, received, sent);
}

void MpiCollectives::compare(const CollectiveCall& call) {
  std::vector by_rank{call.fingerprint()};
  if (keeps_fingerprint() && size() > 1)
    by_rank = comm::all_gather(exchange_.group(), by_rank.front(), "what the ranks call");
  fingerprint_check_.next(call, by_rank, exchange_.group());
}

}  // namespace llamesh::comm
