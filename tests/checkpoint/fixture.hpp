#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/store.hpp"
#include "core/philox.hpp"
#include "mpi_world.hpp"
#include "sharding/wrap_policy.hpp"

namespace llamesh::test {

inline model::LlamaConfig small_config(std::int64_t hidden = 24, bool tied = false) {
  model::LlamaConfig config;
  config.hidden_size = hidden;
  config.intermediate_size = 40;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.vocab_size = 97;
  config.tie_word_embeddings = tied;
  return config.resolved();
}

/// A folder of its own for a test on all ranks; removed at its end.
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

/// The state of a run on a mesh [replicate, shard = world / replicate], each number a function of
/// (version, group, parameter, element).
class Job {
 public:
  explicit Job(int replicate, sharding::Wrap wrap = sharding::Wrap::layer,
               const model::LlamaConfig& config = small_config())
      : shard_group(world().split(world().rank() / shards(replicate), world().rank())),
        replicate_group(world().split(world().rank() % shards(replicate), world().rank())),
        table(model::parameter_table(config)),
        layout(table, sharding::make_units(table, {wrap, 1000}), shards(replicate)) {
    for (const char* path : {"/model", "/optimizer/exp_avg", "/optimizer/exp_avg_sq"}) {
      groups.push_back({path, {}});
      for (const auto& unit : layout.units()) {
        buffers.emplace_back(4 * unit.shard_numel);
        groups.back().shards.push_back(buffers.back().tensor(DType::f32, {unit.shard_numel}));
      }
    }
  }

  checkpoint::State state() const { return {layout, shard_group.rank(), groups}; }
  checkpoint::Groups comms() const { return {world(), replicate_group}; }

  /// Calls visit(number, what it is in `version`) for all numbers of this rank.
  void for_each(int version, const std::function<void(float&, float)>& visit) const {
    for (const auto& group : groups)
      for (std::size_t u = 0; u < group.shards.size(); ++u)
        for (const auto& piece : layout.pieces(u, shard_group.rank())) {
          const auto hash = name_hash(group.path + table[piece.parameter].name);
          for (std::int64_t i = 0; i < piece.count; ++i) {
            const auto mixed = (hash + static_cast<std::uint64_t>(piece.begin + i) * 2654435761U +
                                static_cast<std::uint64_t>(version) * 40503U) &
                               0xffffffU;
            visit(group.shards[u].span<float>()[static_cast<std::size_t>(piece.offset + i)],
                  static_cast<float>(mixed));
          }
        }
  }
  void fill(int version) const {
    for_each(version, [](float& number, float value) { number = value; });
  }
  /// How many of this world's numbers are not those of `version`.
  std::int64_t wrong(int version) const {
    std::int64_t count = 0;
    for_each(version, [&](float& number, float value) { count += number != value ? 1 : 0; });
    return world().sum(count);
  }

  static int shards(int replicate) { return world().size() / replicate; }

  comm::Communicator shard_group, replicate_group;
  model::ParameterTable table;
  sharding::ShardLayout layout;
  std::vector<device::Buffer> buffers;
  std::vector<checkpoint::StateGroup> groups;
};

inline checkpoint::Progress progress(std::int64_t step) {
  return {step, 10 * step, 7, "replicate=2 x shard=2", "hybrid_shard", "a: 1\n", "{}", "test"};
}

/// The exit code with which `work` ended; done when it did not throw. Every rank must see the same
/// one.
inline ExitCode code_of(const std::function<void()>& work) {
  try {
    work();
    return ExitCode::done;
  } catch (const Error& error) {
    return error.code();
  }
}

}  // namespace llamesh::test
