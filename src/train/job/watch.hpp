#pragma once

#include <chrono>
#include <filesystem>

#include "comm/diagnosis/watchdog.hpp"
#include "train/setup/setup.hpp"

namespace llamesh::train {

/// Starts the watchdog right after MPI_Init, since a rank may be stopped or lost at any time: a
/// hang ends the job with exit 75. Collective.
comm::Watchdog watch_over(const comm::Communicator& world);

/// Returns the alarm for a run. A hang cannot be unwound: the rank that found it prints the
/// diagnosis, records it in log.txt, state.json and a Slurm job's comment, and ends the job. A node
/// may be at fault, so the job may be started again. A rank that reaches only a minority of the
/// hosts just prints. An empty `run_folder` means that there is no state yet.
comm::Watchdog::Alarm alarm_of_run(const std::filesystem::path& run_folder);

/// Returns the time limit for the first load or save: ten minutes, plus four seconds per GB, since
/// a checkpoint may be read twice and disks are slow.
std::chrono::seconds time_for_first_checkpoint(const Setup& setup);

}  // namespace llamesh::train
