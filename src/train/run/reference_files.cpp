#include "train/run/reference_files.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "comm/mpi/exchange.hpp"
#include "core/clock.hpp"
#include "core/file.hpp"
#include "core/hash.hpp"
#include "core/log.hpp"
#include "data/fingerprint.hpp"
#include "data/mapped_file.hpp"
#include "data/numpy_array.hpp"
#include "model/description/config_json.hpp"
#include "train/health/state_hash.hpp"

namespace llamesh::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* dtype = "<f4";

void add(RunningHash& hash, const auto& number) {
  hash.add(&number, sizeof(number));
}

/// A stream's file, beside its data or in the run folder.
struct Places {
  fs::path beside_data, in_run_folder;
};

Places places_for(const Setup& setup, const data::TokenStream& stream, const std::string& first,
                  std::uint64_t model) {
  RunningHash hash;
  add(hash, model);
  for (const auto& file : stream.file_fingerprints(data::piece_bytes_for(stream.files()))) {
    add(hash, file.tokens);
    add(hash, file.hash);
  }
  const auto name =
      fmt::format("{}.reference-{}.npy", fs::path(first).filename().string(), to_hex(hash.value()));
  return {fs::path(first).parent_path() / name, fs::path(setup.inputs.run.folder) / name};
}

/// Returns the places for each of pair_streams().
std::vector<Places> all_places(const Setup& setup, std::uint64_t model) {
  std::vector<std::string> firsts;
  for (const auto& source : setup.inputs.data.training_sources())
    firsts.push_back(source.files.front());
  for (const auto& set : setup.inputs.validation_sets()) firsts.push_back(set.files.front());
  std::vector<Places> places;
  for (const auto* stream : pair_streams(setup))
    places.push_back(places_for(setup, *stream, firsts[places.size()], model));
  return places;
}

/// Returns a file's numbers; empty if it is not there. Throws a user error if they are not those of
/// so many pairs.
std::vector<float> read(const fs::path& path, std::int64_t pairs) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return {};
  const data::MappedFile file(path.string());
  const auto array = data::numpy_array(file.bytes(), path.string());
  const auto bytes = static_cast<std::size_t>(2 * pairs) * sizeof(float);
  validate(array.dtype == dtype && array.size == 2 * pairs && array.values.size() == bytes,
           "'{}' has {} numbers of type {} in {} bytes, and {} pairs have {} of type {}; remove it",
           path.string(), array.size, array.dtype, array.values.size(), pairs, 2 * pairs, dtype);
  std::vector<float> numbers(static_cast<std::size_t>(2 * pairs));
  std::memcpy(numbers.data(), array.values.data(), bytes);
  return numbers;
}

void write(const fs::path& path, const std::vector<float>& numbers) {
  replace_durably(path, [&](Descriptor& file) {
    file.append(data::numpy_header(dtype, std::ssize(numbers)));
    file.append(std::string_view(reinterpret_cast<const char*>(numbers.data()),
                                 numbers.size() * sizeof(float)));
  });
}

/// Reads all streams' files on rank 0. What is missing is empty. Collective.
PairReferences read_all(const comm::Communicator& world, const Setup& setup,
                        const std::vector<Places>& places) {
  const auto streams = pair_streams(setup);
  PairReferences references(streams.size());
  comm::agree(world, [&] {
    for (std::size_t i = 0; i < streams.size() && world.rank() == 0; ++i) {
      const auto pairs = streams[i]->pairs();
      references[i] = read(places[i].beside_data, pairs);
      if (references[i].empty()) references[i] = read(places[i].in_run_folder, pairs);
    }
  });
  for (auto& of_stream : references) of_stream = comm::broadcast_list(world, of_stream);
  return references;
}

/// Writes the files that were missing beside the data, or in the run folder.
void write_new(const std::vector<Places>& places, const PairReferences& found,
               const PairReferences& references) {
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (!found[i].empty()) continue;
    const auto& [beside_data, in_run_folder] = places[i];
    const auto folder = beside_data.parent_path() / ".";
    const bool may_write = ::access(folder.c_str(), W_OK | X_OK) == 0;
    const auto& path = may_write ? beside_data : in_run_folder;
    if (!may_write) make_folder(in_run_folder.parent_path());
    write(path, references[i]);
    spdlog::info("reference log-probabilities of {} pairs are in {}", references[i].size() / 2,
                 path.string());
  }
}

/// Hashes the training pairs' log-probabilities; validation sets may change.
std::uint64_t hash_for_training(const Setup& setup, const PairReferences& references) {
  RunningHash hash;
  for (std::size_t source = 0; source < setup.train_tokens->sources(); ++source)
    hash.add(references[source].data(), references[source].size() * sizeof(float));
  return hash.value();
}

bool is_missing(const Places& places) {
  std::error_code ignored;
  return !fs::exists(places.beside_data, ignored) && !fs::exists(places.in_run_folder, ignored);
}

}  // namespace

std::uint64_t hash_of_model(const comm::Communicator& world, const Setup& setup,
                            const Trainer& trainer, std::uint64_t frozen) {
  RunningHash hash;
  for (const auto& [part, of_part] : hash_state(world, trainer.state())) {
    hash.add(part.data(), part.size());
    hash.add(of_part.data(), of_part.size());
  }
  add(hash, frozen);
  const auto& in = setup.inputs;
  if (!in.pretrained.load_weights) add(hash, in.run.seed);  // frozen weights may be drawn
  const auto config = model::to_config_json(in.model);
  hash.add(config.data(), config.size());
  add(hash, in.precision.parameters);
  add(hash, in.precision.linear);
  return hash.value();
}

checkpoint::PairReference find_references(const comm::Communicator& world, const Setup& setup,
                                          Trainer& trainer, std::uint64_t model,
                                          const Trainer::OnProgress& on_progress) {
  const auto places = all_places(setup, model);
  const auto found = read_all(world, setup, places);
  auto references = found;
  if (std::ranges::none_of(found, &std::vector<float>::empty)) {
    spdlog::info("reference log-probabilities: read from {}", places.front().beside_data.string());
  } else {
    const auto begin = Clock::now();
    references = trainer.compute_references(found, on_progress);
    spdlog::info("reference log-probabilities: computed in {:.2f} s", seconds_since(begin));
    comm::agree(world, [&] {
      if (world.rank() == 0) write_new(places, found, references);
    });
  }
  const auto hash = hash_for_training(setup, references);
  trainer.use_references(std::move(references));
  return {.model = model, .log_probs = hash};
}

void restore_references(const comm::Communicator& world, const Setup& setup, Trainer& trainer,
                        const checkpoint::PairReference& saved) {
  const auto places = all_places(setup, saved.model);
  comm::agree(world, [&] {
    const auto missing = std::ranges::find_if(places, is_missing);
    validate(world.rank() != 0 || missing == places.end(),
             "{} is missing, which has the reference model's log-probabilities; restore it, or let "
             "another run of the same inputs with train.steps=0 compute it",
             missing == places.end() ? "" : missing->beside_data.string());
  });
  auto references = read_all(world, setup, places);
  comm::agree(world, [&] {
    validate(world.rank() != 0 || hash_for_training(setup, references) == saved.log_probs,
             "{} is not the file with which the run was trained; restore it",
             places.front().beside_data.string());
  });
  trainer.use_references(std::move(references));
}

}  // namespace llamesh::train
