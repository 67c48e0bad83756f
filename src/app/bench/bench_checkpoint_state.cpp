#include "app/bench/bench_checkpoint_state.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "checkpoint/format/format.hpp"
#include "core/file.hpp"
#include "core/philox.hpp"
#include "optim/optimizer.hpp"
#include "sharding/wrap_policy.hpp"

namespace llamesh::app {
namespace {

constexpr std::int64_t piece = 4 << 20;  // bytes per read or write

/// Returns a Llama whose fp32 weights and two moments take about `mebibytes` together.
model::ModelConfig config_of(std::int64_t mebibytes) {
  model::ModelConfig config;
  const bool large = mebibytes >= 1024;
  config.hidden_size = large ? 1024 : 256;
  config.intermediate_size = large ? 2816 : 704;
  config.num_attention_heads = config.hidden_size / 64;
  config.vocab_size = large ? 16384 : 4096;
  config.num_hidden_layers = 1;
  const auto bytes = [&](std::int64_t layers) {
    config.num_hidden_layers = layers;
    return 12.0 * static_cast<double>(model::parameter_table(config.resolved()).numel());
  };
  const double layer = bytes(2) - bytes(1);
  const double rest = bytes(1) - layer;
  const double wanted = (static_cast<double>(mebibytes) * (1 << 20) - rest) / layer;
  config.num_hidden_layers = std::max(std::int64_t{1}, static_cast<std::int64_t>(wanted + 0.999));
  return config.resolved();
}

}  // namespace

RandomState::RandomState(const comm::Communicator& world, std::int64_t mebibytes)
    : rank_(world.rank()),
      table_(model::parameter_table(config_of(mebibytes))),
      layout_(table_, sharding::make_units(table_, {sharding::Wrap::layer, 1}),
              comm::ParallelDims({{"shard", world.size()}})) {
  std::int64_t numel = 0;
  for (const auto& unit : layout_.units()) numel += unit.shard_numel;
  buffer_ = device::Buffer(12 * numel);
  fill();
  std::int64_t at = 0;
  using namespace checkpoint;
  groups_.push_back({std::string(model_group), {}});
  for (const auto& moment : optim::moments_of({}))
    groups_.push_back({moment_group(moment.name), {}});
  for (auto& group : groups_)
    for (const auto& unit : layout_.units()) {
      group.shards.push_back(buffer_.tensor(DType::f32, {unit.shard_numel}, at));
      at += 4 * unit.shard_numel;
    }
}

/// Fills with one repeated block of random values: drawing all would take longer than the
/// benchmark.
void RandomState::fill() const {
  constexpr std::int64_t filled = 4 << 20;
  auto* values = reinterpret_cast<float*>(buffer_.data());
  const auto count = std::min(buffer_.bytes(), filled);
  fill_normal(values, 0, count / 4, 1, fmt::format("bench {}", rank_), 1.0F);
  for (std::int64_t at = count; at < buffer_.bytes(); at += count)
    std::copy_n(buffer_.data(), std::min(count, buffer_.bytes() - at), buffer_.data() + at);
}

void raw_write(const std::filesystem::path& path, const RandomState& state, int rank,
               WriteBack write_back) {
  auto file = Descriptor::to_write(path, O_WRONLY | O_CREAT);
  const auto begin = rank * state.bytes();
  for (std::int64_t at = 0; at < state.bytes(); at += piece) {
    const auto count = std::min(piece, state.bytes() - at);
    file.write(begin + at, state.data() + at, count);
    if (write_back == WriteBack::early)
      ::sync_file_range(file.get(), begin + at, count, SYNC_FILE_RANGE_WRITE);
  }
  file.sync();
}

void raw_read(const std::filesystem::path& path, const RandomState& state, int rank) {
  const auto file = Descriptor::to_read(path);
  const auto begin = rank * state.bytes();
  for (std::int64_t at = 0; at < state.bytes(); at += piece)
    file.read(begin + at, state.data() + at, std::min(piece, state.bytes() - at));
}

void drop_from_cache(const std::filesystem::path& path) {
  ::posix_fadvise(Descriptor::to_read(path).get(), 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace llamesh::app
