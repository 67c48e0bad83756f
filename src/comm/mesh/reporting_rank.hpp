#pragma once

#include <chrono>

#include "comm/mesh/launch.hpp"

namespace llamesh::comm {

/// Returns true on the process that prints a problem which all ranks of a launch have: rank
/// `reporter`, and any other process that sees no further rank. A world of one cannot ask the
/// others, and its rank may be a variable left over from another launch: then no process has the
/// rank `reporter`, and this one has to print.
///
/// Processes of one launcher see each other by a socket name of their node; a launcher that ends
/// the job (SIGTERM) has seen the exit of a rank. So each node prints at most one line more, and
/// none if the launcher ends the job or starts several ranks there. Slurm's own variables are never
/// left over: each of its steps sets them. Waits up to `patience` on other
/// ranks than `reporter`. Called where the process is about to end: it holds the name until then
/// and replaces the handler of SIGTERM.
bool is_reporting_rank(const Launch& launch, int reporter = 0,
                       std::chrono::milliseconds patience = std::chrono::seconds(2));

}  // namespace llamesh::comm
