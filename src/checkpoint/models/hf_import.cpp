#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "checkpoint/format/format.hpp"
#include "checkpoint/format/state_writer.hpp"
#include "checkpoint/models/hf_export.hpp"
#include "checkpoint/models/hf_model.hpp"
#include "checkpoint/models/hf_new_folder.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "model/description/config_json.hpp"
#include "sharding/strategy.hpp"
#include "sharding/wrap_policy.hpp"

namespace llamesh::checkpoint {
namespace {

/// A readable range of zeros: private pages that were never written all map to the zero page.
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
               const std::vector<std::string>& moments, const std::string& config,
               const std::string& version, const comm::Communicator& world) {
  // Passed as text, so that one rank reads the file and keys missing from the text go unused.
  const auto model_config = comm::on_rank_0(
      world, [&] { return model::to_config_json(model::read_config_json(folder)); });
  const auto shape = model::parse_config_json(model_config, "config.json");
  const auto table = model::parameter_table(shape);
  const comm::ParallelDims mesh({{"shard", world.size()}});
  const auto placements = sharding::whole_and_sharded(table, mesh);
  const sharding::ShardLayout layout(table, sharding::make_units(table, {}, mesh, placements), mesh,
                                     placements);

  std::int64_t largest = 0;
  for (const auto& unit : layout.units()) largest = std::max(largest, unit.shard_numel);
  const Zeros zeros(largest * size_of(DType::f32));
  State state{layout, world.rank(), {{std::string(model_group), {}}}};
  for (const auto& moment : moments) state.groups.push_back({moment_group(moment), {}});
  for (const auto& unit : layout.units())
    for (auto& group : state.groups) group.shards.push_back(zeros.tensor(unit.shard_numel));

  NewFolder checkpoint(target, world);
  const auto weights = open_hf_model(folder, shape, table, world);
  std::vector<float> read;
  const auto source = [&](const ShardIo& part) -> std::span<const float> {
    if (state.groups[part.group].path != model_group) return part.values.in_place();  // zeros
    read.resize(static_cast<std::size_t>(part.count()));
    weights->read(part.parameter, range_of(part, state), read);
    return read;
  };
  const TrainState progress{
      .step = 0,
      .tokens = 0,
      .seed = 0,
      .mesh = comm::to_string(mesh),
      .strategy = std::string(sharding::name_of(sharding::Strategy::full_shard)),
      .config = config,
      .model_config = model_config,
      .llamesh_version = version};
  const auto manifest =
      write_state(checkpoint.path() / state_name, state, progress, world, {}, source);
  comm::agree(world, [&] {
    if (world.rank() == 0) write_durably(checkpoint.path() / manifest_name, to_text(manifest));
  });
  checkpoint.commit();
}

}  // namespace llamesh::checkpoint
