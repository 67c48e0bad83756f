// A small run for kill_at_test.sh: resumes, checks that the state is that of the step it resumed
// at, and goes on to step LAST with a save at each. Usage: kill_at_victim FOLDER LAST. Prints the
// step that it resumed at; exits with 2 when a state that it loads is not the right one.
#include <fmt/format.h>

#include "comm/session.hpp"
#include "fixture.hpp"

namespace llamesh::test {
namespace {
const comm::Communicator* all = nullptr;
}
const comm::Communicator& world() {
  return *all;
}
}  // namespace llamesh::test

int main(int, char** arguments) {
  using namespace llamesh;
  const comm::MpiSession session;
  test::all = &session.world();
  const test::Job job(1);
  checkpoint::CheckpointOptions options;
  options.keep = 1;
  checkpoint::Store store(arguments[1], options, job.comms());
  const auto resumed = store.resume(job.state(), "auto");
  const int first = resumed ? static_cast<int>(resumed->step) : 0;
  const int last = std::atoi(arguments[2]);
  if (resumed && job.wrong(first) != 0) return 2;
  setenv("LLAMESH_KILL_ARMED", "1", 1);
  for (int step = first + 1; step <= last; ++step) {
    job.fill(step);
    store.save(job.state(), test::progress(step));
  }
  unsetenv("LLAMESH_KILL_ARMED");
  job.fill(0);
  const auto reached = store.resume(job.state(), "auto");
  if (!reached || reached->step != last || job.wrong(last) != 0) return 2;
  fmt::print("resumed {}\n", first);
  return 0;
}
