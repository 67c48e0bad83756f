#include "hostile_files.hpp"

#include <functional>

#include "checkpoint/format/state_reader.hpp"
#include "checkpoint/models/hf_weights.hpp"
#include "checkpoint/models/safetensors.hpp"
#include "checkpoint/store/lease.hpp"
#include "config/inputs.hpp"
#include "core/log.hpp"
#include "data/mapped_file.hpp"
#include "model/description/config_json.hpp"
#include "temporary_folder.hpp"
#include "tokenizer/tokenizer.hpp"
#include "train/job/run_folder.hpp"
#include "train/records/metrics.hpp"
#include "train/records/run_metrics.hpp"
#include "train/records/run_state.hpp"

// Covers every kind of file that the program opens under a name where others may put something
// else.

namespace llamesh {
namespace {

namespace fs = std::filesystem;

struct Use {
  std::string file;  ///< path for the hostile file
  std::function<void(const fs::path& folder)> open;
  ExitCode code = ExitCode::bad_input;
};

std::vector<Use> uses() {
  return {
      {"run.yaml", [](const fs::path& at) { config::load_inputs(at / "run.yaml", {}); }},
      {"text.txt", [](const fs::path& at) { data::MappedFile((at / "text.txt").string()); }},
      {"tokenizer.json",
       [](const fs::path& at) { tokenizer::open_tokenizer(at / "tokenizer.json"); }},
      {"tokenizer.model",
       [](const fs::path& at) { tokenizer::open_tokenizer(at / "tokenizer.model"); }},
      {"config.json", [](const fs::path& at) { model::read_config_json(at); }},
      {"model.safetensors", [](const fs::path& at) { checkpoint::HfWeights{at}; }},
      {"model.safetensors.index.json", [](const fs::path& at) { checkpoint::HfWeights{at}; }},
      {"manifest.json", [](const fs::path& at) { checkpoint::read_manifest(at); },
       ExitCode::io_failure},
      {".lease", [](const fs::path& at) { checkpoint::Lease{at}; }},
      {"log.txt", [](const fs::path& at) { train::open_run_folder(at); }},
      {"state.json", [](const fs::path& at) { train::read_run_state(at); }},
      {"metrics.jsonl", [](const fs::path& at) { train::MetricsFile(at / "metrics.jsonl", 0); }},
      {"metrics.jsonl", [](const fs::path& at) { train::read_metrics(at / "metrics.jsonl"); }},
  };
}

ExitCode code_of(const Use& use, const fs::path& folder) {
  const test::TimeLimit limit(20);
  try {
    use.open(folder);
    return ExitCode::done;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(use.file), std::string::npos) << error.what();
    return error.code();
  }
}

TEST(HostileFiles, AreRefusedAtOnce) {
  for (const auto& use : uses())
    for (const auto& kind : test::hostile_kinds()) {
      SCOPED_TRACE(kind + " as " + use.file);
      const test::TemporaryFolder folder;
      test::put_hostile(kind, folder.path() / use.file);
      EXPECT_EQ(code_of(use, folder.path()), use.code);
    }
  setup_logging();  // drops what log.txt has added
}

TEST(HostileFiles, AreRefusedWhenTheyAreLargerThanMemory) {
  for (const auto& use : uses()) {
    // These are mapped rather than read, or set aside if they do not begin like ours.
    if (use.file == "text.txt" || use.file == ".lease" || use.file == "log.txt") continue;
    SCOPED_TRACE(use.file);
    const test::TemporaryFolder folder;
    test::put_sparse(folder.path() / use.file, std::uintmax_t{1} << 40, "{\"step\":1");
    EXPECT_EQ(code_of(use, folder.path()), use.code);
  }
}

}  // namespace
}  // namespace llamesh
