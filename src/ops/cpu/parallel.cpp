#include "ops/cpu/parallel.hpp"

#include <thread>

namespace llamesh::ops::cpu {
namespace {
// Static initialization runs on the main thread.
const std::thread::id main_thread = std::this_thread::get_id();
}  // namespace

bool may_open_team() {
  return std::this_thread::get_id() == main_thread;
}

}  // namespace llamesh::ops::cpu
