#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "comm/mpi/communicator.hpp"

// Several values exchanged in one collective. `purpose` is as in Communicator.
namespace llamesh::comm {

/// Gathers each rank's bytes into `all`, by rank; every rank passes the same size.
void all_gather_bytes(const Communicator& group, std::span<const std::byte> mine,
                      std::span<std::byte> all, const char* purpose);

/// Returns a list's bytes as text.
template <class T>
std::string_view bytes_of(const std::vector<T>& list) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(list.data()), list.size() * sizeof(T)};
}

/// Returns the list with these bytes.
template <class T>
std::vector<T> list_from(std::string_view bytes) {
  std::vector<T> list(bytes.size() / sizeof(T));
  if (!list.empty()) std::memcpy(list.data(), bytes.data(), bytes.size());
  return list;
}

/// Gathers a trivially copyable struct from each rank, by rank.
template <class T>
std::vector<T> all_gather(const Communicator& group, const T& value, const char* purpose) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<std::size_t>(group.size()));
  all_gather_bytes(group, std::as_bytes(std::span(&value, 1)),
                   std::as_writable_bytes(std::span(all)), purpose);
  return all;
}

/// Gathers each rank's list of trivially copyable structs, one after another in rank order.
template <class T>
std::vector<T> all_gather_lists(const Communicator& group, const std::vector<T>& mine) {
  std::vector<T> all;
  for (const auto& bytes : group.all_gather(bytes_of(mine))) {
    const auto list = list_from<T>(bytes);
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

/// Broadcasts rank 0's list of trivially copyable structs.
template <class T>
std::vector<T> broadcast_list(const Communicator& group, const std::vector<T>& mine) {
  return list_from<T>(group.broadcast(std::string(bytes_of(mine))));
}

/// Runs agree(), and returns each rank's result from `phase`, by rank.
std::vector<std::array<std::int64_t, 2>> agree_and_gather(
    const Communicator& group, const std::function<std::array<std::int64_t, 2>()>& phase,
    const char* purpose);

}  // namespace llamesh::comm
