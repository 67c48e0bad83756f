#pragma once

// The only include of <mpi.h>. Used by comm/*.cpp and by checkpoint/ (parallel HDF5), by no header
// of another layer.
#include <mpi.h>

#include <source_location>
#include <span>
#include <string>
#include <string_view>

#include "comm/communicator.hpp"

namespace llamesh::comm {

/// MPI's text for an error.
std::string error_text(int code);

/// Throws when an MPI call failed: what was being done, MPI_Error_string, rank, file and line.
void check(int code, std::string_view doing,
           const std::source_location& where = std::source_location::current());

/// Completes the request without holding the core: polls, yields, then sleeps a little between
/// polls.
void wait(MPI_Request& request, std::string_view doing);
void wait_all(std::span<MPI_Request> requests, std::string_view doing);

MPI_Comm native(const Communicator& communicator);

/// Whether collective calls that free resources are still possible: MPI is not finalized, and no
/// exception is unwinding this thread (the other ranks would not take part).
bool may_free();

/// The MPI communicator inside a Communicator, with cached properties.
struct Communicator::Handle {
  /// Takes ownership of `owned`, which was created from `parent` (none: the world).
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
