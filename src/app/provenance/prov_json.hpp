#pragma once

#include "app/program/output_file.hpp"
#include "app/provenance/run_facts.hpp"

namespace llamesh::app {

/// Namespace for what PROV has no term for. By it, an earlier document is recognized.
inline constexpr const char* prov_terms = "urn:x-llamesh:terms:";

/// Returns provenance.json: PROV-JSON (w3.org/submissions/prov-json). Entities are files,
/// checkpoints and inputs, activities are launches, and each llamesh version is an agent.
/// Identifiers are unique by the run's name and the time when it began.
Json prov_json(const RunFacts& facts);

}  // namespace llamesh::app
