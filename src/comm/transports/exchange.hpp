#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>
#include <vector>

#include "comm/mesh/communicator.hpp"

// Several values exchanged in one collective. `purpose` is as in Communicator.
namespace llamesh::comm {

/// Gathers each rank's bytes into `all`, by rank; every rank passes the same size.
void all_gather_bytes(const Communicator& group, std::span<const std::byte> mine,
                      std::span<std::byte> all, const char* purpose);

/// Gathers a trivially copyable struct from each rank, by rank.
template <class T>
std::vector<T> all_gather(const Communicator& group, const T& value, const char* purpose) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<std::size_t>(group.size()));
  all_gather_bytes(group, std::as_bytes(std::span(&value, 1)),
                   std::as_writable_bytes(std::span(all)), purpose);
  return all;
}

/// Runs agree(), and returns each rank's result from `phase`, by rank.
std::vector<std::int64_t> agree_and_gather(const Communicator& group,
                                           const std::function<std::int64_t()>& phase,
                                           const char* purpose);

}  // namespace llamesh::comm
