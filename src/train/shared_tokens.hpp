#pragma once

#include <functional>
#include <vector>

#include "comm/communicator.hpp"
#include "data/tokenized_text.hpp"

namespace llamesh::train {

/// The result of `tokenize`, which is called on one rank of each machine; the others see the same
/// bytes in shared memory. Collective, as is the destruction of the last copy of the result. When
/// it throws on any rank, all ranks throw, as in agree(); a user error where a machine has too
/// little shared memory.
std::vector<data::TokenizedText> tokenize_once(
    const comm::Communicator& world,
    const std::function<std::vector<data::TokenizedText>()>& tokenize);

}  // namespace llamesh::train
