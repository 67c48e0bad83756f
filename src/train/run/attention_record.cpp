#include "train/run/attention_record.hpp"

#include "comm/transports/exchange.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "ops/attention_use.hpp"

namespace llamesh::train {

void check_attention(const comm::Communicator& world, const std::string& saved) {
  check_attention(world, saved, ops::used_attention());
}

void check_attention(const comm::Communicator& world, const std::string& saved,
                     const std::string& used) {
  const auto of_rank_0 = comm::on_rank_0(world, [&] { return used; });
  comm::agree(world, [&] {
    validate(
        used == of_rank_0,
        "this rank computes attention by {}, rank 0 by {}: install the same cuDNN on all nodes "
        "and use one type of GPU, or set LLAMESH_ATTENTION=builtin",
        used, of_rank_0);
  });
  if (world.rank() == 0 && !saved.empty() && !used.empty() && saved != used)
    spdlog::warn(
        "attention is computed by {}, in the checkpoint's steps it was by {}: this run is not "
        "bitwise the one that would have gone on there (LLAMESH_ATTENTION selects it)",
        used, saved);
}

}  // namespace llamesh::train
