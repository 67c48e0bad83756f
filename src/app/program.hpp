#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/launch.hpp"
#include "train/run_inputs.hpp"

/// What the commands that run under mpirun or srun have in common.
namespace llamesh::app {

/// The inputs, as rank 0 has read them, and their resolved text.
struct ReadInputs {
  train::Inputs inputs;
  std::string text;
};

/// Rank 0 reads the file and sends the resolved text to all: one reader, one judge. Collective.
ReadInputs read_inputs(const comm::Communicator& world, const std::string& path,
                       const std::vector<std::string>& overrides);

/// Chooses this process's device by the text of --device: auto, cpu or cuda. Collective.
void use_device(const comm::Communicator& world, const std::string& choice);
/// The same of a command that runs without MPI: the first GPU, or the CPU.
void use_lone_device(const std::string& choice);
/// How such a command computes bf16 products on the CPU: the way that is faster here. Why AMX is
/// not used goes to stderr.
void use_faster_bf16_products();

/// Ends a command for what every rank finds in the command line before MPI is there: the first one
/// throws the user error, the others comm::PeerFailure.
[[noreturn]] void refuse(const comm::Launch& launch, const std::string& what);

/// Before a rank leaves for an error that another one reports: the first rank to end takes the
/// others with it, so the reporting rank needs the time for its line. It then ends the wait.
void await_reporting_rank();

/// Runs work in which an error of one rank cannot be agreed upon, since the others may be in the
/// middle of a collective: the rank that has the error reports it and ends the job.
void run_or_abort(const std::function<void()>& work);

}  // namespace llamesh::app
