#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "record.hpp"

/// A record of record_shim.cpp, and what a power loss may leave on the disk of what it tells.
namespace llamesh::test {

/// A file or folder, however it is called: its place in the order in which they were made. 0 is the
/// folder below which calls were recorded.
using Node = std::size_t;

struct RecordedCall {
  Call call;
  int rank;
  Node node;                   ///< which is made, written, synced, renamed or removed
  Node folder;                 ///< that holds the names
  std::string name, new_name;  ///< of a sync `name` is that of the node
  std::int64_t offset;         ///< of a write; the new size of a resize
  std::string bytes;
};

/// The calls below `root`, which is as empty now as it was before them.
std::vector<RecordedCall> read_record(const std::filesystem::path& record,
                                      const std::filesystem::path& root);

/// What became of a call that was not brought to the disk in time.
struct Fate {
  enum Kind { missing, present, cut, pages } kind = present;
  std::size_t cut_at = 0;  ///< cut: so many of its bytes are there
  std::uint64_t mask = 0;  ///< pages: the write's page i is there where bit i % 64 is set
};

/// Of pending calls, by their place in the record; one that is not there is `present`.
using Fates = std::map<std::size_t, Fate>;

/// Files and folders by their paths from the root; a folder has no text.
using Tree = std::map<std::filesystem::path, std::optional<std::string>>;

/// The disk after a part of a record. What fsync brought to the disk is there; the other calls are
/// `pending`, each with a fate of its own:
/// - fsync of a file brings what its rank wrote (another rank may be on another node);
/// - fsync of a folder brings the names made, changed and removed in it, by whatever rank;
/// - the two are independent: a file on the disk may lack its name, a name may lack the bytes.
class Disk {
 public:
  /// fsync of files and folders whose names contain `unsynced` (or NAME@RANK: by that rank alone)
  /// is taken as not made; empty: all count.
  Disk(const std::vector<RecordedCall>& calls, std::string unsynced);

  /// Takes the next call in.
  void advance();
  std::size_t point() const { return point_; }
  const std::vector<std::size_t>& pending() const { return pending_; }
  Tree after(const Fates& fates) const;

 private:
  bool counts(const RecordedCall& sync) const;
  std::string text(Node file, const Fates& fates) const;

  const std::vector<RecordedCall>& calls_;
  std::string unsynced_;
  std::map<Node, std::vector<std::size_t>> changes_;  // of files: writes and sizes
  std::size_t point_ = 0;
  std::vector<std::size_t> pending_;  // calls, in order
};

/// What is there now.
Tree read_tree(const std::filesystem::path& root);
/// Makes it so, in an empty folder.
void write_tree(const Tree& tree, const std::filesystem::path& root);

}  // namespace llamesh::test
