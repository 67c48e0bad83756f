#pragma once

#include <string_view>

#include "app/json_output.hpp"
#include "train/job/run_state.hpp"

namespace llamesh::app {

/// The last failure of a run: `kind`, `rank`, `host`, `phase`, `step`, `axis`, `collective`,
/// `unit`, `waiting` (ranks), `detail`, `at`. What is not known is null, `waiting` empty.
///
/// From the text of failure.json; null where it is none. Values of other types count as not known.
Json parse_failure(std::string_view text);
/// From state.json, which knows less; null where the run did not fail.
Json failure_of(const train::RunState& state);

}  // namespace llamesh::app
