#pragma once

#include <string_view>

#include "app/json_output.hpp"
#include "train/job/run_state.hpp"

namespace llamesh::app {

/// A run's last failure as JSON: `kind`, `rank`, `host`, `phase`, `step`, `axis`, `collective`,
/// `unit`, `waiting` (ranks), `detail`, `at`. Unknown fields are null, `waiting` is empty.
///
/// Parses failure.json; null if the text is none. Values with other types count as unknown.
Json parse_failure(std::string_view text);
/// Converts state.json, which knows less; null if the run did not fail.
Json failure_of(const train::RunState& state);

}  // namespace llamesh::app
