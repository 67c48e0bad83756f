#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "runs/small_run.hpp"

namespace llamesh::test {
namespace {

/// Returns inputs with two JSONL sources, short documents and instructions, with weights and
/// document masks.
train::Inputs packed_inputs(const TemporaryFolder& folder) {
  train::Inputs in = small_inputs(folder.path());
  const auto texts = folder.path() / "texts.jsonl";
  const auto answers = folder.path() / "answers.jsonl";
  std::ofstream out(texts);
  for (int i = 0; i < 300; ++i)
    out << R"({"text": "lamp )" << i * i % 97 << " of " << i % 7 << "\"}\n";
  out.close();
  out.open(answers);
  for (int i = 0; i < 12; ++i)
    out << R"({"instruction": "Double )" << i << R"(", "output": "It is )" << 2 * i << "\"}\n";
  out.close();
  in.data.format = data::Format::jsonl;
  in.data.train.clear();
  in.data.sources = {{{texts.string()}, 1.0}, {{answers.string()}, 1.5}};
  in.data.document_mask = true;
  in.sharding.strategy = sharding::Strategy::hybrid_shard;
  in.mesh.ranks_per_node = world().size() % 2 == 0 ? world().size() / 2 : 0;
  return in;
}

TEST(PackedDocuments, EveryMeshSeesTheSameOnes) {
  const TemporaryFolder folder;
  const auto in = packed_inputs(folder);
  const auto here = run(world(), in);
  const auto alone = run_alone(in);
  ASSERT_EQ(here.losses.size(), alone.losses.size());
  EXPECT_LT(alone.losses.back(), 0.8 * alone.losses.front()) << "the run learnt nothing";
  for (std::size_t i = 0; i < here.losses.size(); ++i)
    EXPECT_NEAR(here.losses[i], alone.losses[i], 1e-5 * alone.losses[i]) << "step " << i + 1;
}

TEST(PackedDocuments, TheMaskReachesTheModel) {
  const TemporaryFolder folder;
  auto in = packed_inputs(folder);
  in.train.steps = 1;
  const auto masked = run_alone(in);
  in.data.document_mask = false;
  const auto open = run_alone(in);
  // Targets and visible keys differ, which changes the loss by far more than rounding.
  EXPECT_GT(std::abs(masked.losses[0] - open.losses[0]), 1e-4);
}

TEST(RandomTokens, TrainAndValidateWithoutAFile) {
  const TemporaryFolder folder;
  train::Inputs in = small_inputs(folder.path());
  in.data.format = data::Format::random;
  in.data.train.clear();
  in.evaluate = {.every_steps = in.train.steps, .batches = 1};
  const auto here = run(world(), in);
  const auto alone = run_alone(in);
  ASSERT_EQ(here.losses.size(), alone.losses.size());
  for (std::size_t i = 0; i < here.losses.size(); ++i)
    EXPECT_NEAR(here.losses[i], alone.losses[i], 1e-5 * alone.losses[i]) << "step " << i + 1;
}

}  // namespace
}  // namespace llamesh::test
