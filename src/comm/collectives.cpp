#include "comm/collectives.hpp"

#include "device/queue.hpp"

namespace llamesh::comm {

double Collectives::seconds_exposed() const {
  return std::chrono::duration<double>(stream_.queue()->blocked()).count();
}

}  // namespace llamesh::comm
