#pragma once

#include <string_view>

#include "app/json_output.hpp"
#include "train/job/run_state.hpp"

namespace llamesh::app {

/// Parses failure.json into a run's last failure: `kind`, `rank`, `host`, `phase`, `step`, `axis`,
/// `collective`, `unit`, `waiting` (ranks), `detail`, `at`. Unknown fields and those with other
/// types are null, `waiting` is empty. Returns null if the text is none.
Json parse_failure(std::string_view text);
/// Converts state.json, which knows less; null if the run did not fail.
Json failure_of(const train::RunState& state);

}  // namespace llamesh::app
