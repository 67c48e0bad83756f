#include "comm/transports/nccl.hpp"

// Replaces nccl/ in a build without CUDA, where no process chooses a GPU.

namespace llamesh::comm {

struct Nccl::Connection {};

Nccl::Nccl(const Communicator& /*world*/, SumOrder order) : order_(order) {
  fail(ExitCode::bad_input, "no NCCL: this program was built without CUDA (LLAMESH_CUDA=OFF)");
}
Nccl::~Nccl() = default;
Nccl::Nccl(Nccl&&) noexcept = default;
Nccl& Nccl::operator=(Nccl&&) noexcept = default;

std::unique_ptr<Collectives> Nccl::axis(const std::string& /*axis*/, const Communicator& /*group*/,
                                        int /*color*/) const {
  return nullptr;
}

std::string nccl_version() {
  return "";
}

}  // namespace llamesh::comm
