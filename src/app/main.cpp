#include <cstdlib>
#include <exception>

#include "app/command_line.hpp"
#include "app/session.hpp"
#include "comm/launch.hpp"
#include "comm/session.hpp"
#include "core/error.hpp"

namespace llamesh::app {
namespace {

/// Every rank sees the same command line before MPI is there: the first one tells.
[[noreturn]] void refuse(const std::string& what) {
  if (comm::detect_launch([](const char* name) { return std::getenv(name); }).rank != 0)
    throw comm::Failed(ExitCode::bad_input);
  fail(ExitCode::bad_input, "{}; see llamesh --help", what);
}

int run(int argc, char** argv) {
  CommandLine line;
  try {
    line.parser().parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    return line.parser().exit(request);
  } catch (const CLI::ParseError& error) {
    refuse(error.what());
  }
  if (!line.command()) refuse("No command is given");
  return line.command()();
}

}  // namespace
}  // namespace llamesh::app

int main(int argc, char** argv) {
  try {
    return llamesh::app::run(argc, argv);
  } catch (const llamesh::comm::Failed& error) {
    llamesh::app::await_the_teller();
    return static_cast<int>(error.code());
  } catch (const std::exception& any) {
    const auto error = llamesh::as_error(any);
    fmt::print(stderr, "llamesh: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
