#include "disk_record.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <stdexcept>

namespace llamesh::test {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t page = 4096;

std::string read_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

bool is_of_names(Call call) {
  return call != Call::write && call != Call::resize && call != Call::sync;
}

/// Applies one call to a folder. Earlier calls may be missing, so a name is removed only if it
/// still belongs to that node.
void change_names(const RecordedCall& c, std::map<std::string, Node>& folder) {
  const auto take_away = [&](const std::string& name) {
    const auto at = folder.find(name);
    if (at != folder.end() && at->second == c.node) folder.erase(at);
  };
  if (c.call == Call::exchange) {
    std::swap(folder[c.name], folder[c.new_name]);
    return;
  }
  if (c.call != Call::make_file && c.call != Call::make_folder) take_away(c.name);
  if (c.call == Call::rename) folder[c.new_name] = c.node;
  if (c.call == Call::make_file || c.call == Call::make_folder) folder[c.name] = c.node;
}

/// Applies the surviving part of a write or a size change.
void change_text(const RecordedCall& c, const Fate& fate, std::string& text) {
  const auto offset = static_cast<std::size_t>(c.offset);
  if (fate.kind == Fate::missing) return;
  if (c.call == Call::resize) {
    text.resize(offset);
    return;
  }
  auto bytes = c.bytes;
  if (fate.kind == Fate::cut) bytes.resize(std::min(bytes.size(), fate.cut_at));
  if (fate.kind == Fate::pages)
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const auto index = (c.offset + static_cast<std::int64_t>(i)) / page - c.offset / page;
      if ((fate.mask >> (index % 64) & 1U) == 0)
        bytes[i] = offset + i < text.size() ? text[offset + i] : '\0';
    }
  text.resize(std::max(text.size(), offset + bytes.size()));
  text.replace(offset, bytes.size(), bytes);
}

}  // namespace

std::vector<RecordedCall> read_record(const fs::path& record, const fs::path& root) {
  const auto text = read_bytes(record);
  struct stat status {};
  if (stat(root.c_str(), &status) != 0) throw std::runtime_error("no folder " + root.string());
  std::map<std::uint64_t, Node> nodes{{status.st_ino, 0}};  // by inode; inodes are reused
  std::map<Node, std::map<std::string, Node>> folders;      // with all calls applied
  std::vector<std::string> name_of{""};                     // current name of each node
  std::vector<RecordedCall> calls;
  for (std::size_t at = 0; at < text.size();) {
    CallHeader h;
    std::memcpy(&h, text.data() + at, sizeof(h));
    at += sizeof(h);
    const auto take = [&](std::size_t bytes) {
      at += bytes;
      return text.substr(at - bytes, bytes);
    };
    RecordedCall c{h.call,   h.rank,       0, 0, take(h.name_bytes), take(h.other_name_bytes),
                   h.offset, take(h.bytes)};
    if (!is_of_names(c.call)) {
      c.node = nodes.at(h.inode);
      c.name = name_of[c.node];
    } else {
      c.folder = nodes.at(h.folder);
      if (!c.new_name.empty() && h.folder != h.other_folder)
        throw std::runtime_error("the replay knows no rename into another folder: " + c.name);
      if (c.call == Call::make_file || c.call == Call::make_folder) {
        c.node = nodes[h.inode] = name_of.size();
        name_of.push_back(c.name);
      } else {
        c.node = folders[c.folder].at(c.name);
        name_of[c.node] = c.new_name;
      }
      change_names(c, folders[c.folder]);
    }
    calls.push_back(std::move(c));
  }
  return calls;
}

Disk::Disk(const std::vector<RecordedCall>& calls, std::string unsynced)
    : calls_(calls), unsynced_(std::move(unsynced)) {
  for (std::size_t i = 0; i < calls.size(); ++i)
    if (calls[i].call == Call::write || calls[i].call == Call::resize)
      changes_[calls[i].node].push_back(i);
}

bool Disk::counts(const RecordedCall& sync) const {
  const auto name = unsynced_.substr(0, unsynced_.find('@'));
  const auto rank = unsynced_.substr(std::min(unsynced_.size(), name.size() + 1));
  return name.empty() || sync.name.find(name) == std::string::npos ||
         (!rank.empty() && sync.rank != std::stoi(rank));
}

void Disk::advance() {
  const auto& now = calls_[point_];
  if (now.call != Call::sync) {
    pending_.push_back(point_);
  } else if (counts(now)) {
    std::erase_if(pending_, [&](std::size_t i) {
      const auto& c = calls_[i];
      return is_of_names(c.call) ? c.folder == now.node : c.node == now.node && c.rank == now.rank;
    });
  }
  ++point_;
}

Tree Disk::after(const Fates& fates) const {
  std::map<Node, std::map<std::string, Node>> folders;
  std::set<Node> are_folders;
  for (std::size_t i = 0; i < point_; ++i) {
    const auto& c = calls_[i];
    if (!is_of_names(c.call)) continue;
    if (c.call == Call::make_folder) are_folders.insert(c.node);
    const auto fate = fates.find(i);
    if (fate == fates.end() || fate->second.kind != Fate::missing)
      change_names(c, folders[c.folder]);
  }
  Tree tree;
  const std::function<void(const fs::path&, Node)> add = [&](const fs::path& path, Node folder) {
    for (const auto& [name, node] : folders[folder])
      if (are_folders.contains(node)) {
        tree[path / name] = std::nullopt;
        add(path / name, node);
      } else {
        tree[path / name] = text(node, fates);
      }
  };
  add({}, 0);
  return tree;
}

std::string Disk::text(Node file, const Fates& fates) const {
  std::string text;
  const auto changes = changes_.find(file);
  if (changes == changes_.end()) return text;
  for (const auto i : changes->second) {
    if (i >= point_) break;
    const auto fate = fates.find(i);
    change_text(calls_[i], fate == fates.end() ? Fate{} : fate->second, text);
  }
  return text;
}

Tree read_tree(const fs::path& root) {
  Tree tree;
  for (const auto& at : fs::recursive_directory_iterator(root))
    tree[fs::relative(at.path(), root)] =
        at.is_directory() ? std::nullopt : std::optional(read_bytes(at.path()));
  return tree;
}

void write_tree(const Tree& tree, const fs::path& root) {
  for (const auto& [path, text] : tree)
    if (text)
      std::ofstream(root / path, std::ios::binary) << *text;
    else
      fs::create_directory(root / path);
}

}  // namespace llamesh::test
