#include <algorithm>

#include "checkpoint/format/format.hpp"
#include "checkpoint/models/base_model.hpp"
#include "checkpoint/models/hf_model.hpp"
#include "checkpoint/models/peft_folder.hpp"
#include "core/error.hpp"
#include "device/device.hpp"
#include "model/description/lora.hpp"

namespace llamesh::checkpoint {
namespace {

/// Elements per message from rank 0.
constexpr std::int64_t message_numel = std::int64_t{2} << 20U;

/// Sums up the hash of the frozen weights that ranks read, each element once.
class FrozenHash {
 public:
  explicit FrozenHash(const State& state) : state_(state) {}
  /// Adds elements of a transfer, from `at` on.
  void add(const ShardIo& transfer, std::int64_t at, std::span<const float> values) {
    const auto& layout = state_.layout;
    const auto id = transfer.parameter;
    const bool is_first = layout.placement(id).is_first_copy(layout.dims(), state_.rank);
    if (!layout.table()[id].frozen || !is_first) return;
    const auto range = range_of(transfer, state_);
    mine_ += hash_of_elements(layout.table()[id], {range.box, range.begin + at, std::ssize(values)},
                              values);
  }
  /// Collective.
  std::uint64_t total(const comm::Communicator& world) const {
    std::uint64_t sum = 0;
    for (const auto rank :
         world.all_gather(static_cast<std::int64_t>(mine_), "the hash of frozen weights"))
      sum += static_cast<std::uint64_t>(rank);
    return sum;
  }

 private:
  const State& state_;
  std::uint64_t mine_ = 0;
};

/// Returns this rank's transfers of the model's own parameters, or of its adapters.
enum class Part : bool { base, adapters };
std::vector<ShardIo> transfers_of(const State& state, Part part) {
  auto transfers = transfers_of(state);
  std::erase_if(transfers, [&](const ShardIo& transfer) {
    return is_adapter(state.layout.table()[transfer.parameter]) != (part == Part::adapters);
  });
  return transfers;
}

/// Fills elements [at, at + count) of a transfer: in place if it is fp32 that the host can access,
/// else piece by piece through `spare`. make(done, values) writes the piece that begins at element
/// `done`.
template <class Make>
void fill(const ShardIo& transfer, std::int64_t at, std::int64_t count, std::vector<float>& spare,
          const Make& make) {
  const auto values = transfer.values.slice(at, count);
  if (const auto here = values.in_place(); !here.empty()) return make(0, here);
  for (std::int64_t done = 0; done < count; done += segment_numel) {
    spare.resize(static_cast<std::size_t>(std::min(segment_numel, count - done)));
    make(done, std::span(spare));
    values.slice(done, std::ssize(spare)).upload(spare);
  }
}

/// Fills the transfers from a source that reads ranges of parameters. Calls visit(transfer, at,
/// values) with what was read of a transfer, from its element `at` on.
template <class Source, class Visit>
void fill_all(const std::vector<ShardIo>& transfers, const State& state, const Source& source,
              const Visit& visit) {
  std::vector<float> spare;
  for (const auto& transfer : transfers) {
    const auto range = range_of(transfer, state);
    fill(transfer, 0, range.count, spare, [&](std::int64_t done, std::span<float> values) {
      source.read(transfer.parameter, {range.box, range.begin + done, std::ssize(values)}, values);
      visit(transfer, done, values);
    });
  }
}

/// Fills whatever `transfers` need from a parameter's elements [begin, ...), stored as `bytes`.
void take(const std::vector<ShardIo>& transfers, const State& state, model::ParameterId parameter,
          StoredType type, std::int64_t begin, const std::string& bytes, FrozenHash& hash) {
  const auto count = std::ssize(bytes) / size_of(type);
  const auto* stored = reinterpret_cast<const std::uint8_t*>(bytes.data());
  std::vector<float> spare;
  const auto whole = Box::whole(state.layout.table()[parameter].shape);
  for (const auto& t : transfers) {
    if (t.parameter != parameter) continue;
    for_each_shared({whole, begin, count}, range_of(t, state),
                    [&](std::int64_t from, std::int64_t to, std::int64_t shared) {
                      fill(t, to, shared, spare, [&](std::int64_t done, std::span<float> values) {
                        to_floats(type, stored + (from + done) * size_of(type), values);
                        hash.add(t, to + done, values);
                      });
                    });
  }
}

/// Reads elements [begin, begin + count) of a parameter, in a type that stores them exactly.
std::string read_stored(const HfModel& model, model::ParameterId parameter, const Box& whole,
                        StoredType type, std::int64_t begin, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  model.read(parameter, {whole, begin, count}, values);
  std::string bytes(static_cast<std::size_t>(count * size_of(type)), '\0');
  from_floats(type, values, reinterpret_cast<std::uint8_t*>(bytes.data()));
  return bytes;
}

/// Sends every parameter from rank 0, which alone has a `model`.
void broadcast(const HfModel* model, const State& state, const comm::Communicator& world,
               FrozenHash& hash) {
  const auto& parameters = state.layout.table().parameters;
  const auto types = comm::on_rank_0(world, [&] {  // one letter each
    std::string letters;
    for (std::size_t p = 0; p < parameters.size(); ++p)
      letters += static_cast<char>(
          'a' + static_cast<int>(model->type(static_cast<model::ParameterId>(p))));
    return letters;
  });
  const auto transfers = transfers_of(state, Part::base);
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const auto parameter = static_cast<model::ParameterId>(p);
    if (is_adapter(parameters[p])) continue;
    const auto type = static_cast<StoredType>(types[p] - 'a');
    const auto whole = Box::whole(parameters[p].shape);
    for (std::int64_t at = 0; at < whole.numel(); at += message_numel) {
      const auto count = std::min(message_numel, whole.numel() - at);
      const auto bytes = comm::on_rank_0(
          world, [&] { return read_stored(*model, parameter, whole, type, at, count); });
      take(transfers, state, parameter, type, at, bytes, hash);
    }
  }
}

}  // namespace

std::unique_ptr<HfModel> open_hf_model(const std::filesystem::path& folder,
                                       const model::ModelConfig& config,
                                       const model::ParameterTable& table,
                                       const comm::Communicator& world) {
  std::unique_ptr<HfModel> model;
  for (const bool first : {true, false})
    comm::agree(world, [&] {
      if ((world.rank() == 0) != first) return;
      model = std::make_unique<HfModel>(folder, config, table);
      if (first) model->check_fits();
    });
  return model;
}

std::uint64_t load_hf_weights(const std::filesystem::path& folder, const model::ModelConfig& config,
                              const State& all, const comm::Communicator& world, ReadBy by) {
  const auto state = all.only(model_group);
  const auto& table = state.layout.table();
  FrozenHash hash(state);
  if (by == ReadBy::rank0) {
    std::unique_ptr<HfModel> model;
    comm::agree(world, [&] {
      if (world.rank() != 0) return;
      model = std::make_unique<HfModel>(folder, config, table);
      model->check_fits();
    });
    broadcast(model.get(), state, world, hash);
    return hash.total(world);
  }
  const auto model = open_hf_model(folder, config, table, world);
  comm::agree(world, [&] {
    fill_all(transfers_of(state, Part::base), state, *model,
             [&](const ShardIo& transfer, std::int64_t at, std::span<const float> values) {
               hash.add(transfer, at, values);
             });
  });
  return hash.total(world);
}

void load_adapters(const std::filesystem::path& folder, const model::ModelConfig& config,
                   const State& all, const comm::Communicator& world) {
  const auto state = all.only(model_group);
  comm::agree(world, [&] {
    fill_all(transfers_of(state, Part::adapters), state,
             PeftFolder(folder, config, state.layout.table()), [](const auto&...) {});
  });
}

}  // namespace llamesh::checkpoint
