#include "checkpoint/memory/memory_folder.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "checkpoint/format/format.hpp"
#include "checkpoint/memory/memory_snapshot.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/hash.hpp"
#include "core/philox.hpp"
#include "core/slurm/own_job.hpp"
#include "core/text.hpp"

namespace llamesh::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view mark_prefix = "job-";

}  // namespace

std::string memory_folder_prefix(const fs::path& run_folder) {
  std::error_code ignored;
  return fmt::format("/dev/shm/llamesh-memory-{}-{}-", ::geteuid(),
                     to_hex(name_hash(fs::weakly_canonical(run_folder, ignored).string())));
}

std::string memory_node_name(const comm::Topology& topology, int node) {
  const auto host_of = [&](int of) {
    const auto rank = std::ranges::find(topology.node_of, of) - topology.node_of.begin();
    return topology.host_of[static_cast<std::size_t>(rank)];
  };
  auto host = host_of(node);
  int place = 0;
  for (int earlier = 0; earlier < node; ++earlier) place += host_of(earlier) == host ? 1 : 0;
  std::ranges::replace(host, '/', '_');
  return fmt::format("{}.{}", host, place);
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    files.push_back(at->path());
  return files;
}

void remove_memory_folders(const std::string& prefix, const std::set<fs::path>& kept) {
  std::error_code ignored;
  for (const auto& folder : files_in(fs::path(prefix).parent_path()))
    if (folder.native().starts_with(prefix) && !kept.contains(folder))
      fs::remove_all(folder, ignored);
}

std::string removal_command(const fs::path& run_folder) {
  return fmt::format(R"(for mark in {}*/{}"$1"; do rm -rf "${{mark%/*}}"; done)",
                     shell_word(memory_folder_prefix(run_folder)), mark_prefix);
}

std::string owner_mark() {
  return fmt::format("{}{}", mark_prefix, job_name());
}

void take_ownership(const fs::path& folder) {
  Descriptor::to_write(folder / owner_mark(), O_WRONLY | O_CREAT);
  fs::permissions(folder / owner_mark(), fs::perms::owner_read | fs::perms::owner_write);
}

void make_memory_folder(const fs::path& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    validate_host(false, "cannot create the folder {} for memory checkpoints: {}", folder.string(),
                  std::strerror(errno));
  struct stat status {};
  validate_host(::lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
                    status.st_uid == ::geteuid() && (status.st_mode & 0777U) == 0700U,
                "{} is not a folder that only this user can enter, which memory checkpoints need; "
                "remove it",
                folder.string());
}

std::string snapshot_name(const SnapshotKey& key, int slot) {
  return fmt::format("{}.{}", to_hex(key.hash), slot);
}

namespace {

/// Returns the slot in a snapshot's file name; -1 if the name is not that of the key.
int slot_of(const fs::path& path, const SnapshotKey& key) {
  for (int slot = 0; slot < snapshots_per_key; ++slot)
    if (path.filename() == snapshot_name(key, slot)) return slot;
  return -1;
}

}  // namespace

std::vector<FoundSnapshot> snapshots_in(const fs::path& folder, std::uint64_t run, int node) {
  std::vector<FoundSnapshot> found;
  for (const auto& path : files_in(folder)) {
    const auto header = MemorySnapshot::read_header(path);
    if (!header || header->run != run) continue;
    if (const int slot = slot_of(path, header->key); slot >= 0)
      found.push_back({.node = node,
                       .slot = slot,
                       .key = header->key,
                       .launch = header->launch,
                       .step = header->step,
                       .disk_step = header->disk_step,
                       .json_bytes = header->json_bytes});
  }
  return found;
}

std::vector<std::string> bad_headers_in(const fs::path& folder, std::uint64_t run) {
  std::vector<std::string> lines;
  for (const auto& path : files_in(folder)) {
    auto problem = MemorySnapshot::problem_with_header(path, run);
    const auto header = MemorySnapshot::read_header(path);
    if (header && header->run == run && slot_of(path, header->key) < 0)
      problem = fmt::format("its key is {}", to_hex(header->key.hash));
    if (!problem.empty())
      lines.push_back(fmt::format("{} is not used: {}", path.string(), problem));
  }
  return lines;
}

std::uint64_t random_identity() {
  std::random_device device;
  const std::uint64_t high = device();
  return (high << 32U) | device() | 1U;
}

std::uint64_t identity_of_run(const fs::path& checkpoints) {
  const auto file = checkpoints / run_identity_name;
  std::error_code error;
  if (fs::exists(file, error) || error) {
    try {
      return from_hex(read_file(file, 16));
    } catch (const Error& unreadable) {
      spdlog::warn("memory checkpoints of earlier launches are not used: {}", unreadable.what());
    }
  }
  const auto identity = random_identity();
  write_durably(file, to_hex(identity));
  return identity;
}

}  // namespace llamesh::checkpoint
