#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

/// Files whose bytes must be on the disk. Every failure is thrown (exit 74) with the path and the
/// system's reason.
namespace llamesh::checkpoint {

/// Owns a file descriptor. Move-only.
class Descriptor {
 public:
  /// `flags` of open(2); new files are 0640 within the user's umask.
  Descriptor(const std::filesystem::path& path, int flags);
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&&) = delete;

  int get() const { return fd_; }
  std::int64_t bytes() const;
  /// Exactly `count` bytes at `offset`, or throws.
  void read(std::int64_t offset, void* data, std::int64_t count) const;
  void write(std::int64_t offset, const void* data, std::int64_t count);
  /// fsync: returns when the bytes are on the disk.
  void sync();

 private:
  int fd_;
  std::filesystem::path path_;
};

/// fsync of a folder: the names in it are on the disk.
void sync_folder(const std::filesystem::path& folder);

/// A folder 0750 within the user's umask, with its parents.
void make_folder(const std::filesystem::path& folder);

/// Replaces `path` with `text`: temporary name, fsync, rename, fsync of the folder. Whoever looks
/// sees the old text or the new one.
void write_durably(const std::filesystem::path& path, const std::string& text);

std::string read_text(const std::filesystem::path& path);

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

/// Swaps two names in one step where the file system can; else in two.
void exchange_paths(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace llamesh::checkpoint
