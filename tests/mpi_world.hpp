#pragma once

#include "comm/mesh/communicator.hpp"

namespace llamesh::test {

/// Returns all ranks in this test program.
const comm::Communicator& world();

}  // namespace llamesh::test
