#pragma once

#include "comm/communicator.hpp"

namespace llamesh::test {

/// All ranks of this test program.
const comm::Communicator& world();

}  // namespace llamesh::test
