// A small run for kill_at_test.sh: resumes, checks the state against the step it resumed at, and
// continues to step LAST with a save at each step. Usage: kill_at_victim FOLDER LAST [async].
// Prints the step it resumed at. Exits with 2 if a loaded state is wrong, and with the error's code
// if a save fails.
#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "comm/mpi/session.hpp"
#include "fixture.hpp"

namespace llamesh::test {
namespace {
const comm::Communicator* all = nullptr;
}
const comm::Communicator& world() {
  return *all;
}
}  // namespace llamesh::test

namespace llamesh {
namespace {

int run(const char* folder, int last, bool async) {
  const comm::MpiSession session;
  test::all = &session.world();
  const test::Job job(1);
  checkpoint::CheckpointOptions options;
  options.keep = 1;
  options.async = async;
  checkpoint::Store store(folder, options, test::world());
  const auto resumed = store.resume(job.state(), "auto");
  const int first = resumed ? static_cast<int>(resumed->step) : 0;
  if (resumed && job.wrong(first) != 0) return 2;
  setenv("LLAMESH_KILL_ARMED", "1", 1);
  for (int step = first + 1; step <= last; ++step) {
    job.fill(step);
    store.save(job.state(), test::progress(step));
    job.fill(0);  // an asynchronous save has its copy
  }
  store.wait();
  unsetenv("LLAMESH_KILL_ARMED");
  const auto reached = store.resume(job.state(), "auto");
  if (!reached || reached->step != last || job.wrong(last) != 0) return 2;
  if (test::world().rank() == 0) fmt::print("resumed {}\n", first);
  return 0;
}

}  // namespace
}  // namespace llamesh

int main(int count, char** arguments) {
  try {
    return llamesh::run(arguments[1], std::atoi(arguments[2]), count > 3);
  } catch (const llamesh::comm::PeerFailure& error) {
    // The failed rank leaves first; mpirun then ends this one.
    std::this_thread::sleep_for(std::chrono::seconds(60));
    return static_cast<int>(error.code());
  } catch (const llamesh::Error& error) {
    fmt::print("{}\n", error.what());
    return static_cast<int>(error.code());
  }
}
