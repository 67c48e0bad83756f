#pragma once

// The only include of <mpi.h>. Used by comm/*.cpp and by checkpoint/ (parallel HDF5), but not by
// any other layer's headers.
#include <mpi.h>

#include <source_location>
#include <span>
#include <string>
#include <string_view>

#include "comm/mpi/communicator.hpp"

namespace llamesh::comm {

/// Returns MPI's text for an error.
std::string error_text(int code);

/// Throws if an MPI call failed: the operation, MPI_Error_string, rank, file and line. An
/// MpiFailure (comm/mpi/session.hpp) if there are other ranks, else an internal error.
void check(int code, std::string_view doing,
           const std::source_location& where = std::source_location::current());

/// Returns true if an MPI call succeeded, else warns once per process. For the watchdog, which goes
/// on after failing calls: it looks for ranks that cannot be reached.
bool succeeded(int code, std::string_view doing);

/// Completes the request without holding the core: polls, yields, then sleeps between polls.
void wait(MPI_Request& request, std::string_view doing);
void wait_all(std::span<MPI_Request> requests, std::string_view doing);

MPI_Comm native(const Communicator& communicator);

/// Returns true if collective calls that free resources are still possible: MPI is not finalized,
/// and no exception is unwinding this thread (the other ranks would not join).
bool may_free();

/// MPI communicator inside a Communicator, with cached properties.
struct Communicator::Handle {
  /// Takes ownership of `owned`, which was split from `parent` (null: the world).
  Handle(MPI_Comm owned, Handle* parent, const std::string& name);
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  MPI_Comm comm;
  int rank = 0;
  int size = 1;
  std::shared_ptr<const Members> members;
  std::uint64_t children =
      0;  ///< communicators created from this one, in the same order on all ranks
};

}  // namespace llamesh::comm
