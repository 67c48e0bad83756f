#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string_view>

#include "app/command_line/command_line.hpp"
#include "app/program/program.hpp"
#include "comm/mpi/launch.hpp"
#include "comm/mpi/session.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "core/process.hpp"

namespace llamesh::app {
namespace {

comm::Launch launch() {
  return comm::detect_launch([](const char* name) { return std::getenv(name); });
}

/// Fails if stdout could not be written.
void check_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  fail(ExitCode::io_failure, "standard output cannot be written: {}",
       errno == 0 ? "parts of it are lost" : std::strerror(errno));
}

}  // namespace
}  // namespace llamesh::app

int main(int argc, char** argv) {
  // With SIGXFSZ ignored, exceeding RLIMIT_FSIZE is a failed write, and reported as such.
  std::signal(SIGXFSZ, SIG_IGN);
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command == "train" || command == "supervise") llamesh::catch_stop_signals();
  const auto launch = llamesh::app::launch();
  try {
    const int code = llamesh::app::run_command_line(launch, argc, argv);
    llamesh::app::check_output();
    return code;
  } catch (const llamesh::comm::PeerFailure& error) {
    llamesh::app::await_reporting_rank();
    return static_cast<int>(error.code());
  } catch (const std::exception& any) {
    const auto error = llamesh::as_error(any);
    llamesh::print_error(error.what());
    if (launch.by_open_mpi()) llamesh::comm::abort_job(error.code());
    return static_cast<int>(error.code());
  }
}
