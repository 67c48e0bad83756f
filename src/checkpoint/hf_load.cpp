#include <algorithm>
#include <optional>

#include "checkpoint/format.hpp"
#include "checkpoint/hf_weights.hpp"
#include "core/error.hpp"

namespace llamesh::checkpoint {
namespace {

/// Bytes that rank 0 sends at a time.
constexpr std::int64_t message_bytes = std::int64_t{32} << 20U;

std::vector<Transfer> transfers_of_model(const State& state) {
  expects(!state.groups.empty() && state.groups[0].path == model_group,
          "the weights are not the first group of the state");
  return transfers_of({state.layout, state.shard_rank, {state.groups[0]}});
}

/// Where a tied model's head is written out although it is the embedding, it must be the embedding:
/// the bytes of `count` elements are compared.
void check_tied_head(const HfWeights& weights, const model::ParameterTable& table,
                     std::int64_t begin, std::int64_t count) {
  const std::string head = "lm_head.weight";
  if (!table.tied() || !weights.has(head)) return;
  const auto& name = table[table.embed_tokens.weight].name;
  const auto size = weights.tensor(name).bytes / weights.tensor(name).numel();
  const auto part = [&](const std::string& of) {
    return weights.bytes(of).subspan(static_cast<std::size_t>(begin * size),
                                     static_cast<std::size_t>(count * size));
  };
  validate(weights.tensor(head).dtype == weights.tensor(name).dtype &&
               std::ranges::equal(part(head), part(name)),
           "config.json ties the head to the embedding, but {} is not {}; set "
           "tie_word_embeddings to false in it",
           head, name);
}

/// What of `transfers` lies in elements [begin, begin + count) of a dataset.
void take(std::vector<Transfer>& transfers, std::size_t dataset, StoredType type,
          std::int64_t begin, const std::string& bytes) {
  const auto end = begin + std::ssize(bytes) / size_of(type);
  for (auto& t : transfers) {
    const auto from = std::max(begin, t.begin);
    const auto to = std::min(end, t.begin + std::ssize(t.values));
    if (t.dataset != dataset || from >= to) continue;
    to_floats(type,
              reinterpret_cast<const std::uint8_t*>(bytes.data()) + (from - begin) * size_of(type),
              t.values.subspan(static_cast<std::size_t>(from - t.begin),
                               static_cast<std::size_t>(to - from)));
  }
}

/// Rank 0 sends parameter by parameter, in the type in which it is stored.
void broadcast(const std::optional<HfWeights>& weights, const State& state,
               const comm::Communicator& world) {
  const auto& parameters = state.layout.table().parameters;
  const auto types = comm::on_rank_0(world, [&] {  // one letter each
    std::string letters;
    for (const auto& p : parameters)
      letters +=
          static_cast<char>('a' + static_cast<int>(*stored_type(weights->tensor(p.name).dtype)));
    return letters;
  });
  auto transfers = transfers_of_model(state);
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const auto type = static_cast<StoredType>(types[p] - 'a');
    const auto total = parameters[p].numel() * size_of(type);
    for (std::int64_t at = 0; at < total; at += message_bytes) {
      std::string bytes;
      if (world.rank() == 0) {
        const auto part =
            weights->bytes(parameters[p].name)
                .subspan(static_cast<std::size_t>(at),
                         static_cast<std::size_t>(std::min(message_bytes, total - at)));
        bytes.assign(part.begin(), part.end());
      }
      bytes = world.broadcast(std::move(bytes));
      take(transfers, p, type, at / size_of(type), bytes);
    }
  }
}

}  // namespace

void load_hf_weights(const std::filesystem::path& folder, const State& state,
                     const comm::Communicator& world, ReadBy by) {
  const auto& table = state.layout.table();
  std::optional<HfWeights> weights;
  comm::agree(world, [&] {
    if (world.rank() != 0) return;
    weights.emplace(folder);
    weights->check_fits(table);
    if (by == ReadBy::rank0)
      check_tied_head(*weights, table, 0, table[table.lm_head.weight].numel());
  });
  if (by == ReadBy::rank0) return broadcast(weights, state, world);
  comm::agree(world, [&] {
    if (!weights) weights.emplace(folder);
    for (const auto& transfer : transfers_of_model(state)) {
      weights->read(table.parameters[transfer.dataset].name, transfer.begin, transfer.values);
      if (transfer.dataset == model::index(table.lm_head.weight))
        check_tied_head(*weights, table, transfer.begin, std::ssize(transfer.values));
    }
  });
}

}  // namespace llamesh::checkpoint
