#pragma once

#include <string>

#include "train/setup.hpp"

namespace llamesh::train {

/// A whole run: opens the run folder, goes on from the newest good checkpoint, trains to the last
/// step, and on the way evaluates, saves, and tells people and files about it. `config` is the
/// resolved inputs as YAML, kept in the run folder and in every checkpoint. Collective.
void run(const comm::Communicator& world, const Setup& setup, const std::string& config);

}  // namespace llamesh::train
