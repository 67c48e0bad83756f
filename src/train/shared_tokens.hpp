#pragma once

#include <functional>
#include <vector>

#include "comm/communicator.hpp"
#include "data/tokenized_text.hpp"

namespace llamesh::train {

/// What `tokenize` gives, called on one rank of each machine; the others of the machine see the
/// same bytes in memory that they share. Collective, also when the last copy of the result goes.
/// When it throws on any rank, all ranks throw, as agree() says; a user error where a machine has
/// no room.
std::vector<data::TokenizedText> tokenize_once(
    const comm::Communicator& world,
    const std::function<std::vector<data::TokenizedText>()>& tokenize);

}  // namespace llamesh::train
