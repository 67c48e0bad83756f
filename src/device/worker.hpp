#pragma once

#include "device/queue.hpp"

namespace llamesh::device {

/// A queue of the CPU: a thread that does the work.
std::unique_ptr<Stream::Queue> make_worker();

}  // namespace llamesh::device
