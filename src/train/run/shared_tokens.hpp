#pragma once

#include <functional>
#include <vector>

#include "comm/mesh/communicator.hpp"
#include "data/tokenized_text.hpp"

namespace llamesh::train {

/// Calls `tokenize` on one rank per machine and returns its result; the other ranks see the same
/// bytes in shared memory. Collective, and so is the destruction of the result's last copy. If it
/// throws on any rank, all ranks throw, as in agree(). Throws a user error if a machine has too
/// little shared memory.
std::vector<data::TokenizedText> tokenize_once(
    const comm::Communicator& world,
    const std::function<std::vector<data::TokenizedText>()>& tokenize);

}  // namespace llamesh::train
