// For any checkpoint files, `verify` must answer in time, and find every byte that differs from the
// original. An input changes bytes in a small checkpoint: in state.h5, in manifest.json, or in
// state.h5 with a fitting new manifest, so that HDF5 reads the damaged data. Not for libFuzzer: it
// has no coverage inside HDF5.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

#include "answer.hpp"
#include "checkpoint/format/h5.hpp"
#include "checkpoint/format/state_reader.hpp"
#include "checkpoint/format/state_writer.hpp"
#include "core/hash.hpp"
#include "temporary_folder.hpp"

namespace {

namespace checkpoint = llamesh::checkpoint;
namespace fs = std::filesystem;
using llamesh::test::expect;

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

/// Two datasets, their attributes and a tied head's link, on disk and in memory.
class Checkpoint {
 public:
  Checkpoint() {
    manifest_.progress.config = "model: {hidden_size: 8}\n";
    {
      auto file = checkpoint::h5::File::create(state_);
      file.create_attribute("step", std::int64_t{7});
      file.create_attribute("config", manifest_.progress.config);
      add(file, {"/model/model.embed_tokens.weight", {16, 8}, 0, {}, {}});
      add(file, {"/model/model.norm.weight", {8}, 0, {}, {}});
      file.link("/model/model.embed_tokens.weight", "/model/lm_head.weight");
      file.close();
    }
    state_text_ = text_of(state_);
    seal();
    manifest_text_ = text_of(manifest_path_);
    expect(checkpoint::find_damage(folder_.path()).empty(), "the checkpoint is damaged as made");
  }

  enum class Change : std::uint8_t { state, manifest, sealed_state };

  /// Applies edits with four bytes each: a position, and a value to add to the byte there; 0
  /// truncates the file.
  void change(Change what, std::span<const std::uint8_t> edits) {
    auto state = state_text_;
    auto manifest = manifest_text_;
    auto& text = what == Change::manifest ? manifest : state;
    for (; edits.size() >= 4; edits = edits.subspan(4)) {
      const std::size_t at = edits[0] | edits[1] << 8U | edits[2] << 16U;
      if (edits[3] == 0)
        text.resize(at % (text.size() + 1));
      else
        text[at % text.size()] = static_cast<char>(text[at % text.size()] + edits[3]);
      if (text.empty()) break;
    }
    const bool same = state == state_text_ && manifest == manifest_text_;
    write(state_, state);
    write(manifest_path_, manifest);
    if (what == Change::sealed_state) seal();
    alarm(20);
    const auto damage = checkpoint::find_damage(folder_.path());
    alarm(0);
    if (same || what != Change::sealed_state)
      expect(damage.empty() == same,
             same ? "an undamaged checkpoint is refused" : "damage is not found");
  }

 private:
  void add(checkpoint::h5::File& file, checkpoint::DatasetEntry entry) {
    std::vector<float> values(static_cast<std::size_t>(entry.numel()), 0.5F);
    auto dataset = file.create_dataset(entry.path, entry.shape);
    dataset.write(llamesh::Box::whole(entry.shape), 0, values);
    entry.offset = dataset.offset();
    entry.parts = {llamesh::Box::whole(entry.shape)};
    entry.segments = {
        {0, entry.numel(), llamesh::hash_of(values.data(), values.size() * sizeof(float))}};
    manifest_.datasets.push_back(std::move(entry));
  }

  /// Makes a manifest that fits state.h5 except for the datasets' own bytes.
  void seal() {
    manifest_.file_bytes = static_cast<std::int64_t>(fs::file_size(state_));
    manifest_.metadata_hash = 0;
    llamesh::test::expect_an_answer(
        [&] { manifest_.metadata_hash = checkpoint::metadata_hash(state_, manifest_.datasets); },
        llamesh::ExitCode::io_failure);
    write(manifest_path_, checkpoint::to_text(manifest_));
  }

  llamesh::test::TemporaryFolder folder_;
  fs::path state_ = folder_.path() / "state.h5";
  fs::path manifest_path_ = folder_.path() / "manifest.json";
  checkpoint::Manifest manifest_;
  std::string state_text_, manifest_text_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Checkpoint checkpoint;
  if (size == 0) return 0;
  checkpoint.change(static_cast<Checkpoint::Change>(data[0] % 3), {data + 1, size - 1});
  return 0;
}
