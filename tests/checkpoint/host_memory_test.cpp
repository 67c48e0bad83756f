#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "checkpoint/fixture.hpp"
#include "checkpoint/models/hf_export.hpp"
#include "checkpoint/models/hf_model.hpp"
#include "core/process.hpp"
#include "model/description/config_json.hpp"
#include "support.hpp"

// Transfers between state and file must not need a host copy of the whole state.

namespace llamesh::checkpoint {
namespace {

constexpr std::int64_t mebibyte = std::int64_t{1} << 20U;

/// Returns this process's peak resident memory so far, in bytes.
std::int64_t peak_resident() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

/// Checks that `work` needs less than `bytes` of additional host memory.
template <class Work>
void expect_needs_less_than(std::int64_t bytes, const char* what, const Work& work) {
  const auto before = peak_resident();
  work();
  EXPECT_LT(peak_resident() - before, bytes) << what;
}

model::ModelConfig config_of_many_units() {
  model::ModelConfig config;
  config.hidden_size = 256;
  config.intermediate_size = 1024;
  config.num_hidden_layers = 14;
  config.num_attention_heads = 4;
  config.vocab_size = 4000;
  config.tie_word_embeddings = true;
  return config.resolved();
}

TEST(HostMemory, HoldsNoSecondCopyOfTheState) {
  if (test::sanitized) GTEST_SKIP() << "a sanitizer has memory of its own";
  const auto& world = test::world();
  const test::Folder folder;
  const auto config = config_of_many_units();
  const test::Job job(1, sharding::Wrap::layer, config);
  job.fill(1);
  const auto weights = 4 * job.layout.shard_numel();
  const auto bound = 16 * mebibyte;
  ASSERT_GT(weights, 2 * bound * (world.size() == 1 ? 1 : 0));
  auto progress = test::progress(1);
  progress.model_config = model::to_config_json(config);
  const auto saved = folder.path() / "checkpoints" / "step_00000001";
  const auto exported = folder.path() / "exported";
  ExportOptions options;
  options.type = StoredType::bf16;
  options.max_shard_bytes = 8'000'000;
  Store store(folder.path() / "checkpoints", {}, world);

  expect_needs_less_than(bound, "saving", [&] { store.save(job.state(), progress); });
  expect_needs_less_than(bound, "loading", [&] { store.resume(job.state(), "auto"); });
  expect_needs_less_than(2 * bound, "exporting",
                         [&] { export_hf(saved, exported, options, world); });
  for (const auto by : {ReadBy::each_rank, ReadBy::rank0})
    expect_needs_less_than(2 * bound, "loading from Hugging Face",
                           [&] { load_hf_weights(exported, config, job.state(), world, by); });
  expect_needs_less_than(bound, "importing", [&] {
    import_hf(exported, folder.path() / "imported", {"exp_avg", "exp_avg_sq"}, "a: 1\n", version(),
              world);
  });
}

}  // namespace
}  // namespace llamesh::checkpoint
