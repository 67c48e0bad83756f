// A small run for kill_at_test.sh: resumes, checks that the state is that of the step it resumed
// at, and saves `saves` further steps. Usage: kill_at_victim FOLDER SAVES. Prints the step that it
// resumed at.
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
  const std::int64_t step = resumed ? resumed->step : 0;
  if (resumed && job.wrong(static_cast<int>(step)) != 0) return 2;
  setenv("LLAMESH_KILL_ARMED", "1", 1);
  for (int s = 1; s <= std::atoi(arguments[2]); ++s) {
    job.fill(static_cast<int>(step + s));
    store.save(job.state(), test::progress(step + s));
  }
  unsetenv("LLAMESH_KILL_ARMED");
  fmt::print("resumed {}\n", step);
  return 0;
}
