#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/store/store.hpp"
#include "core/philox.hpp"
#include "sharding/wrap_policy.hpp"
#include "support.hpp"

namespace llamesh::test {

inline model::ModelConfig small_config(std::int64_t hidden = 24, bool tied = false) {
  model::ModelConfig config;
  config.hidden_size = hidden;
  config.intermediate_size = 40;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.vocab_size = 97;
  config.tie_word_embeddings = tied;
  return config.resolved();
}

/// A temporary folder for a test on all ranks.
class Folder {
 public:
  Folder() {
    path_ = comm::on_rank_0(world(), [] {
      auto pattern = (std::filesystem::temp_directory_path() / "llamesh-XXXXXX").string();
      if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
      return pattern;
    });
  }
  ~Folder() {
    world().barrier();
    std::error_code error;
    if (world().rank() == 0) std::filesystem::remove_all(path_, error);
    world().barrier();
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Function that returns a table's placements on a mesh.
using PlacementsOf = sharding::Placements (*)(const model::ParameterTable& table,
                                              const comm::ParallelDims& dims);

/// A run's state; each number is a function of (version, group, parameter, element).
class Job {
 public:
  /// Uses the mesh [replicate, shard = world / replicate].
  explicit Job(int replicate, sharding::Wrap wrap = sharding::Wrap::layer,
               const model::ModelConfig& config = small_config())
      : Job(comm::ParallelDims({{"replicate", replicate}, {"shard", shards(replicate)}}),
            sharding::whole_and_sharded, wrap, config) {}
  /// Uses any mesh with the world's size.
  Job(const comm::ParallelDims& dims, PlacementsOf placements,
      sharding::Wrap wrap = sharding::Wrap::layer,
      const model::ModelConfig& config = small_config())
      : table(model::parameter_table(config)),
        layout(table, sharding::make_units(table, {wrap, 1000}, dims, placements(table, dims)),
               dims, placements(table, dims)) {
    for (const char* path : {"/model", "/optimizer/exp_avg", "/optimizer/exp_avg_sq"}) {
      groups.push_back({path, {}});
      for (const auto& unit : layout.units()) {
        buffers.emplace_back(4 * unit.shard_numel);
        groups.back().shards.push_back(buffers.back().tensor(DType::f32, {unit.shard_numel}));
      }
    }
  }

  checkpoint::State state() const { return {layout, world().rank(), groups}; }

  /// Calls visit(number, its value in `version`) for all numbers on this rank.
  void for_each(int version, const std::function<void(float&, float)>& visit) const {
    for (const auto& group : groups)
      for (std::size_t u = 0; u < group.shards.size(); ++u)
        for (const auto& piece : layout.pieces(u, world().rank())) {
          const auto& parameter = table[piece.parameter];
          const auto hash = name_hash(group.path + parameter.name);
          auto* number = group.shards[u].as<float>() + piece.offset;
          const auto visit_run = [&](std::int64_t begin, std::int64_t, std::int64_t count) {
            for (std::int64_t i = begin; i < begin + count; ++i) {
              const auto mixed = (hash + static_cast<std::uint64_t>(i) * 2654435761U +
                                  static_cast<std::uint64_t>(version) * 40503U) &
                                 0xffffffU;
              visit(*number++, static_cast<float>(mixed));
            }
          };
          for_each_run(parameter.shape, layout.range(piece, world().rank()), visit_run);
        }
  }
  void fill(int version) const {
    for_each(version, [](float& number, float value) { number = value; });
  }
  /// Counts the numbers, over all ranks, that differ from `version`.
  std::int64_t wrong(int version) const {
    std::int64_t count = 0;
    for_each(version, [&](float& number, float value) { count += number != value ? 1 : 0; });
    return world().sum(count);
  }

  static int shards(int replicate) { return world().size() / replicate; }

  model::ParameterTable table;
  sharding::ShardLayout layout;
  std::vector<device::Buffer> buffers;
  std::vector<checkpoint::StateGroup> groups;
};

inline checkpoint::TrainState progress(std::int64_t step) {
  checkpoint::TrainState state{step,           10 * step, 7,    "replicate=2 x shard=2",
                               "hybrid_shard", "a: 1\n",  "{}", "test"};
  state.reference = {.model = 5, .log_probs = static_cast<std::uint64_t>(step)};
  return state;
}

/// Returns the exit code with which `work` ended; done if it did not throw. Every rank must see the
/// same code.
inline ExitCode code_of(const std::function<void()>& work) {
  try {
    work();
    return ExitCode::done;
  } catch (const Error& error) {
    return error.code();
  }
}

}  // namespace llamesh::test
