// Checkpoints and Hugging Face folders with parameters that are both split and sharded: whatever
// one placement writes, another reads back bit-exactly.
#include <fcntl.h>

#include <deque>

#include "../sharding/placements.hpp"
#include "checkpoint/format/format.hpp"
#include "checkpoint/format/state_reader.hpp"
#include "checkpoint/models/hf_model.hpp"
#include "fixture.hpp"
#include "model/description/config_json.hpp"
#include "source_file.hpp"

namespace llamesh::test {
namespace {

using checkpoint::Store;

const comm::ParallelDims cube({{"replicate", 2}, {"shard", 2}, {"tensor", 2}});

/// Uses the same mesh, with the other dims split.
sharding::Placements cut_in_another_turn(const model::ParameterTable& table,
                                         const comm::ParallelDims& dims) {
  auto placements = sharding::whole_and_sharded(table, dims);
  for (std::size_t i = 0; i < placements.size(); ++i)
    (i % 2 == 0 ? placements[i].split.back() : placements[i].split.front()) =
        dims.named({"tensor"});
  return placements;
}

/// Splits matrices along both dims: rows along `shard`, columns along `tensor`; not flat-sharded.
sharding::Placements cut_twice(const model::ParameterTable& table, const comm::ParallelDims& dims) {
  sharding::Placements placements;
  for (const auto& parameter : table.parameters) {
    placements.push_back({std::vector<comm::AxisSet>(parameter.shape.size()), {}});
    if (parameter.shape.size() == 1) continue;
    placements.back().split = {dims.named({"shard"}), dims.named({"tensor"})};
  }
  return placements;
}

std::deque<Job> jobs() {  // a deque keeps addresses stable
  std::deque<Job> all;
  for (const auto placements :
       {sharding::whole_and_sharded, cut_in_turn, cut_in_another_turn, cut_twice})
    all.emplace_back(cube, placements, sharding::Wrap::layer, even_config());
  all.emplace_back(comm::ParallelDims({{"shard", 8}}), sharding::whole_and_sharded,
                   sharding::Wrap::none, even_config());
  return all;
}

TEST(Placements, ACheckpointOfAnyIsReadByEveryOther) {
  const auto all = jobs();
  for (std::size_t w = 0; w < all.size(); ++w) {
    const Folder folder;
    all[w].fill(1);
    const auto path = Store(folder.path(), {}, world()).save(all[w].state(), progress(5));
    checkpoint::verify(path, world());
    for (std::size_t r = 0; r < all.size(); ++r) {
      all[r].fill(2);
      ASSERT_TRUE(Store(folder.path(), {}, world()).resume(all[r].state(), "auto"));
      EXPECT_EQ(all[r].wrong(1), 0) << "written by " << w << ", read by " << r;
    }
  }
}

TEST(Placements, TheDatasetsAreTheSameWhateverWroteThem) {
  std::vector<std::vector<float>> first;
  for (const auto& job : jobs()) {
    const Folder folder;
    job.fill(3);
    const auto path = Store(folder.path(), {}, world()).save(job.state(), progress(5));
    if (world().rank() != 0) continue;
    EXPECT_TRUE(checkpoint::find_damage(path).empty());
    std::vector<std::vector<float>> seen;
    for (const auto& entry : checkpoint::read_manifest(path).datasets) {
      auto& values = seen.emplace_back(static_cast<std::size_t>(entry.numel()));
      checkpoint::for_each_range(path, entry, [&](std::int64_t begin, std::span<const float> part) {
        std::ranges::copy(part, values.begin() + begin);
      });
    }
    if (first.empty()) first = seen;
    EXPECT_EQ(seen, first);
  }
}

TEST(Placements, APartOfADatasetIsReadFromAny) {
  for (const auto& job : jobs()) {
    const Folder folder;
    job.fill(3);
    const auto path = Store(folder.path(), {}, world()).save(job.state(), progress(5));
    if (world().rank() != 0) continue;
    const auto file = checkpoint::h5::File::open(path / checkpoint::state_name);
    for (const auto& entry : checkpoint::read_manifest(path).datasets) {
      std::vector<float> all(static_cast<std::size_t>(entry.numel()));
      const auto whole = Box::whole(entry.shape);
      checkpoint::read_range(file, entry, {whole, 0, whole.numel()}, all);
      for (std::size_t d = 0; d < entry.shape.size(); ++d) {
        Box part = Box::whole(entry.shape);
        part.shape[d] /= 2;
        part.begin[d] = part.shape[d];
        std::vector<float> values(static_cast<std::size_t>(part.numel()));
        checkpoint::read_range(file, entry, {part, 0, part.numel()}, values);
        for_each_run(entry.shape, {part, 0, part.numel()},
                     [&](std::int64_t begin, std::int64_t at, std::int64_t count) {
                       EXPECT_TRUE(std::equal(all.begin() + begin, all.begin() + begin + count,
                                              values.begin() + at))
                           << entry.path << " by dim " << d;
                     });
      }
      checkpoint::for_each_range(path, entry, [&](std::int64_t begin, std::span<const float> run) {
        EXPECT_TRUE(std::ranges::equal(
            run, std::span(all).subspan(static_cast<std::size_t>(begin), run.size())));
      });
    }
  }
}

TEST(Placements, OnlyCutDatasetsNeedTheNewFormat) {
  const auto all = jobs();
  EXPECT_EQ(checkpoint::version_of(checkpoint::datasets_of(all[0].state())), 1);
  EXPECT_EQ(checkpoint::version_of(checkpoint::datasets_of(all[1].state())), 2);
}

TEST(Placements, AFlippedBitInAColumnIsFound) {
  const Folder folder;
  const Job job(cube, cut_in_another_turn, sharding::Wrap::layer, even_config());
  job.fill(1);
  const auto path = Store(folder.path(), {}, world()).save(job.state(), progress(5));
  std::int64_t missed = 0;
  if (world().rank() == 0) {
    const auto manifest = checkpoint::read_manifest(path);
    for (const auto& entry : manifest.datasets) {
      auto file = Descriptor::to_write(path / checkpoint::state_name, O_RDWR);
      for (const std::int64_t element : {std::int64_t{0}, entry.numel() / 2, entry.numel() - 1}) {
        char byte = 0;
        file.read(entry.offset + 4 * element, &byte, 1);
        const char other = static_cast<char>(byte ^ 4);
        file.write(entry.offset + 4 * element, &other, 1);
        missed += checkpoint::find_damage(path).size() == 1 ? 0 : 1;
        file.write(entry.offset + 4 * element, &byte, 1);
      }
    }
  }
  EXPECT_EQ(world().sum(missed), 0);
}

TEST(Placements, WeightsOfAHuggingFaceFolderAreTheSameOnEveryMesh) {
  const std::filesystem::path folder = test::source_file("tests/model/golden/hf/gqa_8_2");
  const auto config = model::read_config_json(folder);
  for (const auto by : {checkpoint::ReadBy::rank0, checkpoint::ReadBy::each_rank})
    for (const auto placements : {cut_in_turn, cut_in_another_turn, cut_twice}) {
      const Job job(cube, placements, sharding::Wrap::layer, config);
      job.fill(1);
      checkpoint::load_hf_weights(folder, config, job.state(), world(), by);
      const checkpoint::HfWeights weights(folder);
      const auto state = job.state();
      const auto shards = state.only(checkpoint::model_group).groups.front().shards;
      std::int64_t wrong = 0;
      for (std::size_t u = 0; u < job.layout.units().size(); ++u)
        for (const auto& piece : job.layout.pieces(u, world().rank())) {
          const auto& parameter = job.table[piece.parameter];
          std::vector<float> all(static_cast<std::size_t>(parameter.numel()));
          weights.read(parameter.name, 0, all);
          const float* seen = shards[u].as<float>() + piece.offset;
          for_each_run(parameter.shape, job.layout.range(piece, world().rank()),
                       [&](std::int64_t begin, std::int64_t, std::int64_t count) {
                         for (std::int64_t i = begin; i < begin + count; ++i)
                           wrong += *seen++ != all[static_cast<std::size_t>(i)] ? 1 : 0;
                       });
        }
      EXPECT_EQ(world().sum(wrong), 0);
    }
}

}  // namespace
}  // namespace llamesh::test
