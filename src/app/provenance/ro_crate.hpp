#pragma once

#include <string>

#include "app/program/output_file.hpp"
#include "app/provenance/run_facts.hpp"

namespace llamesh::app {

/// The metadata file's own description, by which an earlier one is recognized.
inline constexpr const char* crate_mark = "Written by llamesh provenance";

/// Returns ro-crate-metadata.json: RO-Crate 1.1 (w3id.org/ro/crate/1.1). The root dataset is the
/// run, and each launch is a CreateAction, as in the Process Run Crate profile. Inputs from outside
/// the run folder are contextual entities, since the crate does not hold them.
/// @param license for the run's results: a name or a URL; empty: not stated (SPDX NOASSERTION).
/// @param prefix  the run folder's URI with a final slash, if the document lies elsewhere.
Json ro_crate(const RunFacts& facts, const std::string& license, const std::string& prefix);

}  // namespace llamesh::app
