#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/mpi/communicator.hpp"
#include "comm/mpi/launch.hpp"
#include "train/setup/run_inputs.hpp"

/// Shared code for commands that run under mpirun or srun.
namespace llamesh::app {

/// Inputs as read by rank 0, and their resolved text.
struct ReadInputs {
  train::Inputs inputs;
  std::string text;
};

/// Reads and checks the file on rank 0 and broadcasts the resolved text. Collective.
ReadInputs read_inputs(const comm::Communicator& world, const std::string& path,
                       const std::vector<std::string>& overrides);

/// Chooses this process's device from --device: auto, cpu or cuda. Throws a user error if the
/// process may not map what the libraries need (device/host_memory.hpp). Collective.
void use_device(const comm::Communicator& world, const std::string& choice);
/// Chooses the device for a command without MPI: the first GPU, or the CPU.
void use_single_device(const std::string& choice);
/// Chooses the faster bf16 matmul method on the CPU for such a command. Prints to stderr why AMX is
/// not used.
void use_faster_bf16_products();

/// Ends a command for an error that every rank finds in the command line before MPI_Init: rank 0
/// throws the user error, the others comm::PeerFailure.
[[noreturn]] void refuse(const comm::Launch& launch, const std::string& what);

/// Waits before a rank exits for an error that another one reports: the first rank to exit ends the
/// others, so this gives the reporting rank time to print its line and end the job.
void await_reporting_rank();

/// Runs work in which ranks cannot agree on an error, since others may be in a collective: the
/// failing rank reports it and ends the job.
void run_or_abort(const std::function<void()>& work);

}  // namespace llamesh::app
