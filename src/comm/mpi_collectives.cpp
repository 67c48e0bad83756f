#include "comm/mpi_collectives.hpp"

#include "comm/arguments.hpp"
#include "comm/exchange.hpp"

namespace llamesh::comm {

MpiCollectives::MpiCollectives(const Communicator& group)
    : Collectives(group), exchange_(group), same_calls_(members()) {}

MpiCollectives::~MpiCollectives() {
  finish(stream());
}

device::Buffer MpiCollectives::allocate_gathered(std::int64_t bytes_per_rank) {
  return device::Buffer(bytes_per_rank * size());
}

device::Buffer MpiCollectives::allocate_symmetric(std::int64_t bytes) {
  return device::Buffer(bytes);
}

device::Event MpiCollectives::all_gather(Tensor whole, Tensor mine, device::Event after) {
  check_all_gather(*this, whole, mine);
  return submit("all-gather", whole, after, all_gather_bytes(whole, size()),
                [this, whole, mine, call = image("all-gather", whole)] {
                  compare(call);
                  exchange_.all_gather(whole, mine);
                });
}

device::Event MpiCollectives::reduce_scatter(Tensor mine, Tensor parts, Accumulate accumulate,
                                             device::Event after) {
  check_reduce_scatter(*this, mine, parts, accumulate);
  return submit("reduce-scatter", parts, after, reduce_scatter_bytes(parts, size()),
                [this, mine, parts, accumulate, call = image("reduce-scatter", parts)] {
                  compare(call);
                  exchange_.reduce_scatter(mine, parts, accumulate);
                });
}

device::Event MpiCollectives::all_reduce(Tensor data, device::Event after) {
  check_all_reduce(data);
  return submit("all-reduce", data, after, all_reduce_bytes(data, size()),
                [this, data, call = image("all-reduce", data)] {
                  compare(call);
                  exchange_.all_reduce(data);
                });
}

device::Event MpiCollectives::broadcast(Tensor data, int root, device::Event after) {
  check_broadcast(*this, data, root);
  return submit("broadcast", data, after, broadcast_bytes(*this, data, root),
                [this, data, root, call = image("broadcast", data)] {
                  compare(call);
                  exchange_.broadcast(data, root);
                });
}

CallImage MpiCollectives::image(const char* kind, const Tensor& whole) const {
  return CallImage::of(kind, subject(), whole);
}

void MpiCollectives::compare(const CallImage& call) {
  const bool exchanged = contract() != nullptr && size() > 1;
  same_calls_.next(exchanged ? comm::all_gather(exchange_.group(), call, "what the ranks call")
                             : std::vector{call},
                   rank());
}

}  // namespace llamesh::comm
