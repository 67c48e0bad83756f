#include "train/setup/setup.hpp"

#include <cstring>
#include <memory>
#include <utility>

#include "comm/mpi/exchange.hpp"
#include "comm/transports/shared_window.hpp"

namespace llamesh::train {
namespace {

constexpr std::int64_t alignment = 64;

/// Returns the part sizes from rank 0.
std::vector<std::int64_t> sizes_on_rank_0(const comm::Communicator& machine,
                                          const std::vector<data::TokenizedText>& parts) {
  std::vector<std::int64_t> sizes;
  for (const auto& part : parts) sizes.push_back(std::ssize(part.bytes()));
  return comm::broadcast_list(machine, sizes);
}

std::vector<data::TokenizedText> share(const comm::Communicator& machine,
                                       std::vector<data::TokenizedText> made) {
  const auto sizes = sizes_on_rank_0(machine, made);
  std::vector<std::int64_t> offsets;
  std::int64_t total = 0;
  for (const std::int64_t size : sizes) {
    offsets.push_back(total);
    total += (size + alignment - 1) / alignment * alignment;
  }
  const auto window =
      std::make_shared<comm::SharedWindow>(machine, total,
                                           "run `llamesh tokenize` once and give its output with "
                                           "data.format: tokens, which stays in its "
                                           "file");
  for (std::size_t i = 0; i < made.size(); ++i)
    std::memcpy(window->data() + offsets[i], made[i].bytes().data(), made[i].bytes().size());
  machine.barrier();
  std::vector<data::TokenizedText> shared;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    shared.emplace_back(
        window, std::span(reinterpret_cast<const std::uint8_t*>(window->data()) + offsets[i],
                          static_cast<std::size_t>(sizes[i])));
  return shared;
}

}  // namespace

std::vector<data::TokenizedText> tokenize_once(
    const comm::Communicator& world,
    const std::function<std::vector<data::TokenizedText>()>& tokenize) {
  const auto machine = world.split_shared_memory();
  std::vector<data::TokenizedText> tokens;
  comm::agree(world, [&] {
    if (machine.rank() == 0) tokens = tokenize();
  });
  comm::agree(world, [&] {
    if (machine.size() > 1) tokens = share(machine, std::move(tokens));
  });
  return tokens;
}

}  // namespace llamesh::train
