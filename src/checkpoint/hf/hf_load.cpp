#include <algorithm>
#include <optional>

#include "checkpoint/format.hpp"
#include "checkpoint/hf/hf_weights.hpp"
#include "core/error.hpp"
#include "device/device.hpp"

namespace llamesh::checkpoint {
namespace {

/// Chunk sizes in bytes: per message from rank 0, and per comparison.
constexpr std::int64_t message_bytes = std::int64_t{8} << 20U;
constexpr std::int64_t compared_bytes = std::int64_t{1} << 20U;

std::vector<ShardIo> transfers_of_model(const State& state) {
  return transfers_of({state.layout, state.rank, {state.group(model_group)}});
}

/// Checks a tied model that also stores its head: the bytes of `count` elements must equal the
/// embedding's.
void check_tied_head(const HfWeights& weights, const model::ParameterTable& table,
                     std::int64_t begin, std::int64_t count) {
  const std::string head = "lm_head.weight";
  if (!table.tied() || !weights.has(head)) return;
  const auto& name = table[table.embed_tokens.weight].name;
  const auto size = weights.tensor(name).bytes / weights.tensor(name).numel();
  bool same = weights.tensor(head).dtype == weights.tensor(name).dtype;
  std::vector<std::uint8_t> of_head, of_embedding;
  for (std::int64_t at = 0; same && at < count * size; at += compared_bytes) {
    for (auto* part : {&of_head, &of_embedding})
      part->resize(static_cast<std::size_t>(std::min(compared_bytes, count * size - at)));
    weights.read_bytes(head, begin * size + at, of_head);
    weights.read_bytes(name, begin * size + at, of_embedding);
    same = of_head == of_embedding;
  }
  validate(same,
           "config.json ties the head to the embedding, but {} is not {}; set "
           "tie_word_embeddings to false in it",
           head, name);
}

/// Returns the parameter elements that a model transfer covers.
BoxRange range_of(const ShardIo& transfer, const State& state) {
  const auto parts = state.layout.parts(static_cast<model::ParameterId>(transfer.dataset));
  return {parts[static_cast<std::size_t>(transfer.part)], transfer.begin, transfer.count()};
}

/// Fills elements [at, at + count) of a transfer: in place if the host can access it, else piece by
/// piece through `spare`. make(done, values) writes the piece that begins at element `done`.
template <class Make>
void fill(const ShardIo& transfer, std::int64_t at, std::int64_t count, std::vector<float>& spare,
          const Make& make) {
  if (device::host_accessible(transfer.memory))
    return make(0, transfer.values.slice(at, count).span<float>());
  for (std::int64_t done = 0; done < count; done += segment_numel) {
    spare.resize(static_cast<std::size_t>(std::min(segment_numel, count - done)));
    make(done, std::span(spare));
    device::upload(device::compute_stream(), transfer.values.slice(at + done, std::ssize(spare)),
                   spare.data());
  }
}

/// Fills whatever `transfers` need from a parameter's elements [begin, ...), given their bytes.
void take(const std::vector<ShardIo>& transfers, const State& state, std::size_t parameter,
          StoredType type, std::int64_t begin, const std::string& bytes) {
  const auto count = std::ssize(bytes) / size_of(type);
  const auto* stored = reinterpret_cast<const std::uint8_t*>(bytes.data());
  std::vector<float> spare;
  const auto& shape = state.layout.table().parameters[parameter].shape;
  for (const auto& t : transfers) {
    if (t.dataset != parameter) continue;
    for_each_shared({Box::whole(shape), begin, count}, range_of(t, state),
                    [&](std::int64_t from, std::int64_t to, std::int64_t shared) {
                      fill(t, to, shared, spare, [&](std::int64_t done, std::span<float> values) {
                        to_floats(type, stored + (from + done) * size_of(type), values);
                      });
                    });
  }
}

/// Sends every parameter from rank 0, in its stored type.
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
  const auto transfers = transfers_of_model(state);
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const auto type = static_cast<StoredType>(types[p] - 'a');
    const auto total = parameters[p].numel() * size_of(type);
    for (std::int64_t at = 0; at < total; at += message_bytes) {
      std::string bytes;
      if (world.rank() == 0) {
        bytes.resize(static_cast<std::size_t>(std::min(message_bytes, total - at)));
        weights->read_bytes(parameters[p].name, at,
                            {reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()});
      }
      bytes = world.broadcast(std::move(bytes));
      take(transfers, state, p, type, at / size_of(type), bytes);
    }
  }
}

}  // namespace

/// Reads runs that are contiguous in the folder.
void read_hf_weights(const HfWeights& weights, const State& state, const ShardIo& transfer,
                     std::vector<float>& spare) {
  const auto& table = state.layout.table();
  const auto& parameter = table.parameters[transfer.dataset];
  const bool may_be_tied_head = transfer.dataset == model::index(table.lm_head.weight);
  const auto range = range_of(transfer, state);
  for_each_run(parameter.shape, range, [&](std::int64_t begin, std::int64_t at, std::int64_t run) {
    fill(transfer, at, run, spare, [&](std::int64_t done, std::span<float> values) {
      weights.read(parameter.name, begin + done, values);
    });
    if (may_be_tied_head) check_tied_head(weights, table, begin, run);
  });
}

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
    std::vector<float> spare;
    for (const auto& transfer : transfers_of_model(state))
      read_hf_weights(*weights, state, transfer, spare);
  });
}

}  // namespace llamesh::checkpoint
