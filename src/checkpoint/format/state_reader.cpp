#include "checkpoint/format/state_reader.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "checkpoint/format/format.hpp"
#include "checkpoint/format/segment_reader.hpp"
#include "checkpoint/format/state_writer.hpp"
#include "core/file.hpp"
#include "device/device.hpp"

namespace llamesh::checkpoint {
namespace {

/// Opens a dataset and checks its shape and offset against the manifest.
h5::Dataset open_dataset(const h5::File& file, const DatasetEntry& entry) {
  auto dataset = file.dataset(entry.path);
  if (dataset.shape() != entry.shape || dataset.offset() != entry.offset)
    fail(ExitCode::io_failure, "{} is not stored in state.h5 as the manifest says", entry.path);
  return dataset;
}

/// Reads a transfer. A segment within it is read in place if the host can access it and it is fp32;
/// any other goes through `spare`.
void read_transfer(SegmentReader& reader, const DatasetEntry& entry, const BoxRange& wanted,
                   const ShardIo& transfer, std::vector<float>& spare) {
  const auto in_place = transfer.values.in_place();
  for (const auto& s : entry.segments) {
    const auto stored = entry.range(s);
    if (!shares_rows(stored, wanted)) continue;
    const std::int64_t at = s.begin - wanted.begin;
    if (!in_place.empty() && stored.box == wanted.box && at >= 0 && at + s.count <= wanted.count) {
      reader.read_ahead(
          entry, s,
          in_place.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(s.count)));
      continue;
    }
    bool is_read = false;
    for_each_shared(stored, wanted, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
      if (!std::exchange(is_read, true)) {
        spare.resize(static_cast<std::size_t>(s.count));
        reader.read(entry, s, spare);
      }
      transfer.values.slice(to, count).upload(std::span(spare).subspan(
          static_cast<std::size_t>(from), static_cast<std::size_t>(count)));
    });
  }
}

/// Reads without HDF5: the manifest has the datasets' offsets, and metadata_hash has shown that
/// HDF5's headers are unchanged.
void read_transfers(const std::filesystem::path& path, const Manifest& manifest, const State& state,
                    Hashing hashing) {
  const auto wanted = datasets_of(state);
  std::map<std::string_view, const DatasetEntry*> by_path;
  for (const auto& d : manifest.datasets) by_path[d.path] = &d;
  SegmentReader reader(path, hashing);
  std::vector<float> spare;
  for (const auto& transfer : transfers_of(state)) {
    const auto& dataset = wanted[transfer.dataset];
    const auto& box = dataset.parts[static_cast<std::size_t>(transfer.part)];
    read_transfer(reader, *by_path.at(dataset.path), {box, transfer.begin, transfer.count()},
                  transfer, spare);
  }
  reader.finish();
}

/// Checks that state.h5 stores the datasets as the manifest says, before their bytes are read. The
/// header hash detects damage; this detects a crafted file.
void check_structure(const std::filesystem::path& path, const Manifest& manifest) {
  const auto file = h5::File::open(path);
  file.check_links();
  for (const auto& entry : manifest.datasets) open_dataset(file, entry);
}

/// Checks the folder's name against the manifest. Any name is fine, but step_N must match the step.
void check_name(const std::filesystem::path& checkpoint, const Manifest& manifest) {
  std::error_code error;
  const auto name = std::filesystem::weakly_canonical(checkpoint, error).filename().string();
  const auto step = step_of_name(name);
  if (step >= 0 && step != manifest.progress.step)
    fail(ExitCode::io_failure, "{} holds step {} by its manifest", checkpoint.string(),
         manifest.progress.step);
}

std::string read_manifest_text(const std::filesystem::path& checkpoint) {
  return read_file(checkpoint / manifest_name, longest_manifest, ExitCode::io_failure);
}

/// Parses the manifest text and checks everything it says about state.h5 outside the datasets.
Manifest check_manifest(const std::filesystem::path& checkpoint, const std::string& text) {
  const auto path = checkpoint / state_name;
  auto manifest = parse_manifest(text, (checkpoint / manifest_name).string());
  check_name(checkpoint, manifest);
  const auto bytes = Descriptor::to_read(path, ExitCode::io_failure).bytes();
  if (bytes != manifest.file_bytes)
    fail(ExitCode::io_failure, "{} has {} bytes where its manifest says {}", path.string(), bytes,
         manifest.file_bytes);
  if (metadata_hash(path, manifest.datasets) != manifest.metadata_hash)
    fail(ExitCode::io_failure, "{} is damaged in its HDF5 headers", path.string());
  check_structure(path, manifest);
  return manifest;
}

}  // namespace

Manifest read_manifest(const std::filesystem::path& checkpoint) {
  return check_manifest(checkpoint, read_manifest_text(checkpoint));
}

namespace {

using Datasets = std::map<std::string, const DatasetEntry*>;

/// Checks that the checkpoint has moments of the parameters that the state trains, and of no
/// others.
void check_trained(const Datasets& datasets, const Manifest& manifest, const State& state) {
  const auto moments =
      std::ranges::find_if(state.groups, [](const StateGroup& g) { return g.path != model_group; });
  if (moments == state.groups.end()) return;
  for (const auto& parameter : state.layout.table().parameters) {
    const bool had_moments = datasets.contains(dataset_path(moments->path, parameter.name));
    validate(
        !had_moments || !parameter.frozen,
        "the run freezes {}, which the checkpoint has trained; restore train.freeze, train.only "
        "and model.lora, or export it with llamesh convert and start a new run from that folder "
        "(model.hf)",
        parameter.name);
    const bool was_frozen =
        !had_moments && (datasets.contains(dataset_path(model_group, parameter.name)) ||
                         manifest.progress.base.has_value());
    const bool same_optimizer = std::ranges::any_of(
        datasets, [&](const auto& d) { return d.first.starts_with(moments->path); });
    validate(!was_frozen || parameter.frozen || !same_optimizer,
             "the run trains {}, which was frozen in the checkpoint and so has no moments; restore "
             "train.freeze, train.only and model.lora, or export it with llamesh convert and start "
             "a new run "
             "from that folder (model.hf)",
             parameter.name);
  }
}

}  // namespace

/// Returns the remedy if the checkpoint's optimizer differs from the run's.
std::string remedy_for(const std::string& path) {
  const bool of_replica = path.starts_with(replicas_group);
  if (!of_replica && !path.starts_with(moment_group(""))) return "";
  return "; restore optimizer.name and optimizer.outer, or export it with llamesh convert and "
         "start a new run from "
         "that folder (model.hf)";
}

void check_fits(const Manifest& manifest, const State& state, OtherGroups others) {
  Datasets left;
  for (const auto& d : manifest.datasets) left[d.path] = &d;
  check_trained(left, manifest, state);
  for (const auto& wanted : datasets_of(state)) {
    const auto found = left.find(wanted.path);
    const auto remedy = remedy_for(wanted.path);
    validate(found != left.end(), "the checkpoint has no {}{}", wanted.path,
             remedy.empty() ? "; was it written by another model?" : remedy);
    validate(
        found->second->shape == wanted.shape,
        "{} has shape ({}) in the checkpoint and ({}) in the model; use the model that wrote it",
        wanted.path, fmt::join(found->second->shape, ", "), fmt::join(wanted.shape, ", "));
    left.erase(found);
  }
  const bool trains_apart = state.layout.dims().apart().any();
  for (const auto& [path, entry] : left) {
    const bool of_replica = path.starts_with(replicas_group);
    if (of_replica && (trains_apart || path.find(errors_group) != path.npos))
      continue;  // another replica's
    const bool in_group = std::ranges::any_of(
        state.groups, [&](const auto& g) { return path.starts_with(g.path + "/"); });
    validate(!in_group && others == OtherGroups::ignore,
             "the checkpoint has {}, which the model or optimizer of this run does not{}", path,
             remedy_for(path));
  }
}

namespace {

/// Returns the replicas that have such a group of their own.
int replicas_with(const Manifest& manifest, std::string_view group) {
  const auto has = [&](int replica) {
    const auto prefix = replica_path(replica, group) + "/";
    return std::ranges::any_of(manifest.datasets,
                               [&](const auto& d) { return d.path.starts_with(prefix); });
  };
  int count = 0;
  while (has(count)) ++count;
  return count;
}

/// Logs that gradient errors are dropped, if the run and the checkpoint do not both have them of as
/// many replicas.
void log_dropped_errors(int saved, const State& state) {
  int own = 0;
  for (const auto& group : state.groups)
    if (group.path.ends_with(errors_group)) ++own;
  if (saved > 0 && saved != own)
    spdlog::info(
        "the checkpoint has gradient errors of {} replicas, this run {}: what rounding has left "
        "out of the last step's gradients is dropped",
        saved, own == 0 ? "keeps none" : fmt::format("has {}", own));
}

/// Logs what it means that the run has other replicas than the checkpoint.
void log_replicas(State::Replicas saved_by, const State& state) {
  log_dropped_errors(saved_by.with_errors, state);
  const int saved = saved_by.apart;
  const auto& dims = state.layout.dims();
  const int own = dims.group_size(dims.apart());
  if (saved == 0 || own == saved || dims.apart().none()) return;
  spdlog::info(
      "the checkpoint is of {} replicas that trained apart, this run has {}: {}", saved, own,
      own < saved
          ? fmt::format("what replicas {} and above have learned since their latest exchange "
                        "is dropped",
                        own)
          : fmt::format("replica r continues from the weights and moments of r mod {}", saved));
}

}  // namespace

TrainState read_state(const std::filesystem::path& checkpoint, const State& state,
                      const comm::Communicator& world, OtherGroups others, const Accept& accept) {
  const auto text = comm::on_rank_0(world, [&] { return read_manifest_text(checkpoint); });
  const auto hashing = best_hashing(world);
  Manifest manifest;
  std::optional<State> held;  // by the checkpoint
  comm::agree(world, [&] {
    manifest = world.rank() == 0 ? check_manifest(checkpoint, text)
                                 : parse_manifest(text, (checkpoint / manifest_name).string());
    if (accept && world.rank() == 0) accept(manifest.progress);  // names keys, not datasets
    const State::Replicas replicas{replicas_with(manifest, model_group),
                                   replicas_with(manifest, errors_group)};
    held.emplace((manifest.progress.base ? state.trained() : state).from_replicas(replicas));
    check_fits(manifest, *held, others);
    if (world.rank() == 0) log_replicas(replicas, state);
  });
  comm::agree(world, [&] { read_transfers(checkpoint / state_name, manifest, *held, hashing); });
  return manifest.progress;
}

void verify_written(const std::filesystem::path& checkpoint, const Manifest& manifest,
                    const comm::Communicator& world) {
  std::int64_t total = 0;
  for (const auto& entry : manifest.datasets) total += entry.numel();
  const std::int64_t first = total / world.size() * world.rank();
  const std::int64_t last =
      world.rank() + 1 == world.size() ? total : total / world.size() * (world.rank() + 1);
  comm::agree(world, [&] {
    if (world.rank() == 0) read_manifest(checkpoint);
    SegmentReader reader(checkpoint / state_name, Hashing::synchronous);
    std::vector<float> values;
    std::int64_t at = 0;  // position of the segment in the sequence of all
    for (const auto& entry : manifest.datasets) {
      for (const auto& s : entry.segments) {
        if (at >= first && at < last) {
          values.resize(static_cast<std::size_t>(s.count));
          reader.read(entry, s, values);
        }
        at += s.count;
      }
    }
  });
}

void verify(const std::filesystem::path& checkpoint, const comm::Communicator& world) {
  const auto text = comm::on_rank_0(world, [&] { return read_manifest_text(checkpoint); });
  Manifest manifest;
  comm::agree(world,
              [&] { manifest = parse_manifest(text, (checkpoint / manifest_name).string()); });
  verify_written(checkpoint, manifest, world);
}

void read_range(const h5::File& file, const DatasetEntry& entry, const BoxRange& wanted,
                std::span<float> values) {
  const auto dataset = open_dataset(file, entry);
  std::vector<float> read;
  for (const auto& s : entry.segments) {
    const auto stored = entry.range(s);
    if (!shares_rows(stored, wanted)) continue;
    read.resize(static_cast<std::size_t>(s.count));
    dataset.read(stored.box, stored.begin, read);
    check_segment(entry, s, read);
    for_each_shared(stored, wanted, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
      std::copy_n(read.begin() + from, count, values.begin() + to);
    });
  }
}

void for_each_range(const std::filesystem::path& checkpoint, const DatasetEntry& entry,
                    const std::function<void(std::int64_t, std::span<const float>)>& visit) {
  const auto file = h5::File::open(checkpoint / state_name);
  const auto dataset = open_dataset(file, entry);
  std::vector<float> values;
  for (const auto& s : entry.segments) {
    const auto range = entry.range(s);
    values.resize(static_cast<std::size_t>(s.count));
    dataset.read(range.box, range.begin, values);
    check_segment(entry, s, values);
    for_each_run(entry.shape, range, [&](std::int64_t begin, std::int64_t at, std::int64_t count) {
      visit(begin, std::span(values).subspan(static_cast<std::size_t>(at),
                                             static_cast<std::size_t>(count)));
    });
  }
}

std::vector<std::string> find_damage(const std::filesystem::path& checkpoint,
                                     std::string_view group) {
  std::vector<std::string> damage;
  try {
    const auto manifest = read_manifest(checkpoint);
    for (const auto& entry : manifest.datasets) {
      if (!entry.path.starts_with(group)) continue;
      try {
        for_each_range(checkpoint, entry, [](auto, auto) {});
      } catch (const Error& error) {
        damage.emplace_back(error.what());
      }
    }
  } catch (const Error& error) {
    damage.emplace_back(error.what());
  }
  return damage;
}

}  // namespace llamesh::checkpoint
