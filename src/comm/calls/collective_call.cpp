#include "comm/calls/collective_call.hpp"

#include <fmt/format.h>

#include <cstring>
#include <numeric>
#include <type_traits>

#include "core/hash.hpp"
#include "core/trace.hpp"

namespace llamesh::comm {

static_assert(std::is_trivially_copyable_v<CollectiveCall>);

CollectiveCall CollectiveCall::of(std::string_view kind, std::string_view subject,
                                  std::string_view dtype, std::int64_t bytes) {
  CollectiveCall call;
  call.bytes = bytes;
  set_text(call.kind, kind);
  set_text(call.subject, subject);
  set_text(call.dtype, dtype);
  return call;
}

CollectiveCall& CollectiveCall::along(const Members& members) {
  group = members.id;
  set_text(axis, members.name);
  return *this;
}

std::uint64_t CollectiveCall::fingerprint() const {
  struct {
    std::array<char, 24> kind;
    std::array<char, 8> dtype;
    std::int64_t bytes, by_peer, root;
  } const equal{kind, dtype, by_peer != 0 ? 0 : bytes, by_peer, root};
  return hash_of(&equal, sizeof(equal));
}

bool CollectiveCall::operator==(const CollectiveCall& other) const {
  return subject == other.subject && fingerprint() == other.fingerprint();
}

namespace {

std::string kind_and_subject(const CollectiveCall& call) {
  return fmt::format("{}{}{}", call.kind.data(), call.subject.front() == '\0' ? "" : " of ",
                     call.subject.data());
}

}  // namespace

std::string describe(const CollectiveCall& call) {
  const auto size = call.by_peer != 0
                        ? fmt::format("{} by counts", call.dtype.data())
                        : fmt::format("{} bytes of {}", call.bytes, call.dtype.data());
  const auto root =
      call.root == CollectiveCall::none ? "" : fmt::format(" from rank {} of the axis", call.root);
  return fmt::format("{} ({}){}", kind_and_subject(call), size, root);
}

std::string title(const CollectiveCall& call) {
  return fmt::format("{} along {}", kind_and_subject(call), call.axis.data());
}

PeerParts::PeerParts(const Tensor& data, std::span<const std::int64_t> counts)
    : data_(data), first_(counts.size() + 1) {
  std::partial_sum(counts.begin(), counts.end(), first_.begin() + 1);
}

PeerParts::PeerParts(const Tensor& data, int ranks)
    : PeerParts(data,
                std::vector<std::int64_t>(static_cast<std::size_t>(ranks), data.numel() / ranks)) {}

PeerParts::PeerParts(const Tensor& data, int ranks, int peer)
    : data_(data), first_(static_cast<std::size_t>(ranks) + 1) {
  if (peer == CollectiveCall::none) return;
  std::fill(first_.begin() + peer + 1, first_.end(), data.numel());
}

Tensor PeerParts::operator[](int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  return data_.slice(first_[r], first_[r + 1] - first_[r]);
}

std::int64_t PeerParts::offset(int rank) const {
  return first_[static_cast<std::size_t>(rank)] * size_of(data_.dtype());
}

}  // namespace llamesh::comm
