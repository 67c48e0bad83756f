#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "checkpoint/format.hpp"
#include "checkpoint/hf/hf_config.hpp"
#include "checkpoint/hf/hf_export.hpp"
#include "checkpoint/hf/hf_new_folder.hpp"
#include "checkpoint/hf/hf_weights.hpp"
#include "checkpoint/state_writer.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "device/buffer.hpp"
#include "optim/optimizer.hpp"
#include "sharding/strategy.hpp"
#include "sharding/wrap_policy.hpp"

namespace llamesh::checkpoint {
namespace {

/// Zeros to read: private pages that were never written all map to the system's zero page.
class Zeros {
 public:
  explicit Zeros(std::int64_t bytes)
      : bytes_(static_cast<std::size_t>(bytes)),
        data_(::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                     0)) {
    if (data_ == MAP_FAILED)
      fail(ExitCode::io_failure, "cannot map {} bytes: {}", bytes, std::strerror(errno));
  }
  ~Zeros() { ::munmap(data_, bytes_); }
  Zeros(const Zeros&) = delete;
  Zeros& operator=(const Zeros&) = delete;
  Tensor tensor(std::int64_t numel) const { return {data_, DType::f32, {numel}}; }

 private:
  std::size_t bytes_;
  void* data_;
};

}  // namespace

void import_hf(const std::filesystem::path& folder, const std::filesystem::path& target,
               const std::string& config, const std::string& version,
               const comm::Communicator& world) {
  // As text, so that one rank reads the file; keys that it lacks are not used.
  const auto model_config =
      comm::on_rank_0(world, [&] { return to_config_json(read_hf_config(folder)); });
  const auto table = model::parameter_table(parse_config_json(model_config, "config.json"));
  const comm::ParallelDims mesh({{"shard", world.size()}});
  const sharding::ShardLayout layout(table, sharding::make_units(table, {}), mesh);

  const device::Buffer weights(layout.shard_numel() * size_of(DType::f32));
  std::int64_t largest = 0;
  for (const auto& unit : layout.units()) largest = std::max(largest, unit.shard_numel);
  const Zeros zeros(largest * size_of(DType::f32));
  State state{layout,
              world.rank(),
              {{std::string(model_group), {}},
               {moment_group(optim::adamw_moments[0]), {}},
               {moment_group(optim::adamw_moments[1]), {}}}};
  std::int64_t at = 0;
  for (const auto& unit : layout.units()) {
    state.groups[0].shards.push_back(weights.tensor(DType::f32, {unit.shard_numel}, at));
    at += unit.shard_numel * size_of(DType::f32);
    for (const auto group : {1U, 2U})
      state.groups[group].shards.push_back(zeros.tensor(unit.shard_numel));
  }

  NewFolder checkpoint(target, world);
  load_hf_weights(folder, state, world, ReadBy::each_rank);
  const Progress progress{
      .step = 0,
      .tokens = 0,
      .seed = 0,
      .mesh = comm::to_string(mesh),
      .strategy = std::string(sharding::name_of(sharding::Strategy::full_shard)),
      .config = config,
      .model_config = model_config,
      .llamesh_version = version};
  const auto manifest = write_state(checkpoint.path() / state_name, state, progress, world, {});
  comm::agree(world, [&] {
    if (world.rank() == 0) write_durably(checkpoint.path() / manifest_name, to_text(manifest));
  });
  checkpoint.commit();
}

}  // namespace llamesh::checkpoint
