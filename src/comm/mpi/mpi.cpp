#include "comm/mpi/mpi.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <string>

#include "comm/mpi/backoff.hpp"
#include "comm/mpi/session.hpp"
#include "core/error.hpp"
#include "core/process.hpp"

namespace llamesh::comm {

std::string error_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  std::string line(text.data(), static_cast<std::size_t>(length));
  std::ranges::replace(line, '\n', ' ');  // MPICH adds its call stack
  return line;
}

void check(int code, std::string_view doing, const std::source_location& where) {
  if (code == MPI_SUCCESS) return;
  std::string_view file = where.file_name();
  if (const auto at = file.rfind("src/"); at != std::string_view::npos) file.remove_prefix(at);
  const auto& self = this_process();
  const auto text = fmt::format("MPI failed in {} on rank {} ({}): {} ({}:{})", doing, self.rank,
                                self.host, error_text(code), file, where.line());
  if (self.world_size == 1) throw Error(ExitCode::internal_error, text);
  throw MpiFailure(text + "; another rank may be lost: start the run again");
}

bool succeeded(int code, std::string_view doing) {
  if (code == MPI_SUCCESS) return true;
  static std::atomic<bool> warned = false;
  if (!warned.exchange(true))
    spdlog::warn("the watchdog goes on although MPI failed in {}: {}", doing, error_text(code));
  return false;
}

void wait(MPI_Request& request, std::string_view doing) {
  wait_all({&request, 1}, doing);
}

void wait_all(std::span<MPI_Request> requests, std::string_view doing) {
  Backoff backoff;
  for (auto& request : requests) {
    for (int done = 0;;) {
      check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), doing);
      if (done != 0) break;
      backoff.pause();
    }
  }
}

MPI_Comm native(const Communicator& communicator) {
  return communicator.handle().comm;
}

bool may_free() {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized != 0 && finalized == 0 && std::uncaught_exceptions() == 0;
}

}  // namespace llamesh::comm
