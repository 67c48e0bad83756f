#include <cstdlib>
#include <exception>
#include <optional>

#include "app/command_line.hpp"
#include "app/session.hpp"
#include "comm/launch.hpp"
#include "comm/session.hpp"
#include "core/error.hpp"

namespace llamesh::app {
namespace {

comm::Launch launch() {
  return comm::detect_launch([](const char* name) { return std::getenv(name); });
}

/// Every rank sees the same command line before MPI is there: the first one prints the error.
[[noreturn]] void refuse(const comm::Launch& launch, const std::string& what) {
  std::optional<comm::MpiSession> session;
  if (launch.by_open_mpi()) session.emplace();  // it takes part in ending the job
  if (launch.rank != 0) throw comm::Failed(ExitCode::bad_input);
  fail(ExitCode::bad_input, "{}; see llamesh --help", what);
}

int run(const comm::Launch& launch, int argc, char** argv) {
  CommandLine line;
  try {
    line.parser().parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    return line.parser().exit(request);
  } catch (const CLI::ParseError& error) {
    refuse(launch, error.what());
  }
  if (!line.command()) refuse(launch, "No command is given");
  return line.command()();
}

}  // namespace
}  // namespace llamesh::app

int main(int argc, char** argv) {
  const auto launch = llamesh::app::launch();
  try {
    return llamesh::app::run(launch, argc, argv);
  } catch (const llamesh::comm::Failed& error) {
    llamesh::app::await_the_teller();
    return static_cast<int>(error.code());
  } catch (const std::exception& any) {
    const auto error = llamesh::as_error(any);
    fmt::print(stderr, "llamesh: {}\n", error.what());
    if (launch.by_open_mpi()) llamesh::comm::abort_job(error.code());
    return static_cast<int>(error.code());
  }
}
