#include "comm/mesh/reporting_rank.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>

namespace llamesh::comm {
namespace {

volatile std::sig_atomic_t asked_to_end = 0;

}  // namespace

bool is_reporting_rank(const Launch& launch, int reporter, std::chrono::milliseconds patience) {
  if (launch.variable.starts_with("SLURM")) return launch.rank == reporter;
  // Linux's abstract names need no file: unix(7). The ranks of a node share their parent.
  const auto name = fmt::format("llamesh-launch-{}-{}", ::getppid(), launch.variable);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::ranges::copy(name.substr(0, sizeof address.sun_path - 1), address.sun_path + 1);
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  // Not closed: the name is held until the process ends.
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool first = ::bind(socket, to, sizeof address) == 0;
  const bool told = !first && ::sendto(socket, "", 1, 0, to, sizeof address) == 1;
  if (launch.rank == reporter) return true;
  if (told) return false;
  std::signal(SIGTERM, [](int) { asked_to_end = 1; });
  pollfd waiting{.fd = first ? socket : -1, .events = POLLIN, .revents = 0};
  const bool heard = ::poll(&waiting, 1, static_cast<int>(patience.count())) != 0;
  return !heard && asked_to_end == 0;
}

}  // namespace llamesh::comm
