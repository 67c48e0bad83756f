#include <exception>

#include "comm/mpi/session.hpp"
#include "comm/transports/mpi_collectives.hpp"
#include "comm/transports/node_collectives.hpp"
#include "core/error.hpp"

// Throws on rank 1 while the others, and its own workers, wait in collectives that never complete.
int main() {
  using namespace llamesh;
  try {
    const comm::MpiSession session;
    comm::NodeCollectives node(session.world());
    comm::MpiCollectives messages(session.world());
    auto a = node.allocate_symmetric(1024);
    auto b = messages.allocate_symmetric(1 << 20);
    if (session.world().rank() != 1) {
      node.all_reduce(a.tensor(DType::f32, {256}), {}).wait();
    } else {
      messages.all_reduce(b.tensor(DType::f32, {1 << 18}), {});
      fail(ExitCode::io_failure, "rank 1 gives up");
    }
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    comm::abort_job(error.code());
  }
}
