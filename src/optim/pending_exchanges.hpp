#pragma once

#include <cstdint>
#include <vector>

namespace llamesh::optim {

/// Exchanges of replicas that train apart which are under way: sent, and yet to be applied.
struct PendingExchanges {
  std::int64_t units = 0;                ///< trained ones, among which fragments are divided
  std::vector<std::int64_t> sent_after;  ///< by fragment: a step; 0: it is not under way
  bool operator==(const PendingExchanges&) const = default;
};

}  // namespace llamesh::optim
