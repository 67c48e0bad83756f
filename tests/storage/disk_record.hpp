#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "record.hpp"

/// A record from record_shim.cpp, and the disk states that a power loss may leave after it.
namespace llamesh::test {

/// A file or folder under any name: its index in creation order. 0 is the folder below which calls
/// were recorded.
using Node = std::size_t;

struct RecordedCall {
  Call call;
  int rank;
  Node node;                   ///< created, written, synced, renamed or removed
  Node folder;                 ///< holds the names
  std::string name, new_name;  ///< for a sync, `name` is the node's
  std::int64_t offset;         ///< for a write; for a resize, the new size
  std::string bytes;
};

/// Reads the calls below `root`, which must be as empty now as it was before them.
std::vector<RecordedCall> read_record(const std::filesystem::path& record,
                                      const std::filesystem::path& root);

/// Fate of a call that was not synced in time.
struct Fate {
  enum Kind { missing, present, cut, pages } kind = present;
  std::size_t cut_at = 0;  ///< cut: number of surviving bytes
  std::uint64_t mask = 0;  ///< pages: the write's page i survives if bit i % 64 is set
};

/// Fates by call index in the record; a missing entry means `present`.
using Fates = std::map<std::size_t, Fate>;

/// Files and folders by their paths from the root; a folder has no text.
using Tree = std::map<std::filesystem::path, std::optional<std::string>>;

/// The disk after part of a record. Everything synced is there; the other calls are `pending`, each
/// with its own fate:
/// - fsync on a file persists its own rank's writes (another rank may be on another node);
/// - fsync on a folder persists all names created, changed and removed in it, by any rank;
/// - the two are independent: a file on disk may lack its name, and a name may lack the bytes.
class Disk {
 public:
  /// Ignores fsync on files and folders whose names contain `unsynced` (or NAME@RANK: only by that
  /// rank); empty: all count.
  Disk(const std::vector<RecordedCall>& calls, std::string unsynced);

  /// Applies the next call.
  void advance();
  std::size_t point() const { return point_; }
  const std::vector<std::size_t>& pending() const { return pending_; }
  Tree after(const Fates& fates) const;

 private:
  bool counts(const RecordedCall& sync) const;
  std::string text(Node file, const Fates& fates) const;

  const std::vector<RecordedCall>& calls_;
  std::string unsynced_;
  std::map<Node, std::vector<std::size_t>> changes_;  // for files: writes and sizes
  std::size_t point_ = 0;
  std::vector<std::size_t> pending_;  // calls, in order
};

/// Reads the current tree.
Tree read_tree(const std::filesystem::path& root);
/// Writes the tree into an empty folder.
void write_tree(const Tree& tree, const std::filesystem::path& root);

}  // namespace llamesh::test
