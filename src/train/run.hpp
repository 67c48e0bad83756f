#pragma once

#include <string>

#include "core/error.hpp"
#include "train/setup.hpp"
#include "train/startup.hpp"

namespace llamesh::train {

/// A whole run: opens the run folder, goes on from the newest good checkpoint, trains to the last
/// step or until it is asked to stop (deadline.hpp), and on the way evaluates, saves, and tells
/// people and files about it. `config` is the resolved inputs as YAML, kept in the run folder and
/// in every checkpoint. Returns `done`, or `stopped_early` with a checkpoint. Collective.
ExitCode run(const comm::Communicator& world, const Setup& setup, const std::string& config,
             Startup startup);

}  // namespace llamesh::train
