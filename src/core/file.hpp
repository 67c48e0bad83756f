#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>

#include "core/error.hpp"

/// The only way to open, read and write files. A FIFO, device, socket or link in place of a file
/// neither blocks the program nor redirects its writes.
///
/// Errors name the path and the system's reason: bad_input (exit 78) if the path does not lead to a
/// usable file, io_failure (exit 74) if the disk is at fault.
namespace llamesh {

/// Returns bad_input if the system error is about the path's name or permissions, otherwise
/// io_failure.
ExitCode exit_code_of(const std::error_code& reason);

/// Owner of the file descriptor for a regular file or a folder. Move-only.
class Descriptor {
 public:
  /// Opens a regular file for reading; follows links. `wrong_file` is the error code if it does not
  /// exist or is not a regular file.
  static Descriptor to_read(const std::filesystem::path& path,
                            ExitCode wrong_file = ExitCode::bad_input);
  /// Opens a regular file, but no link, for writing. `flags` as for open(2): the access mode,
  /// O_CREAT, O_EXCL, O_TRUNC, O_APPEND. New files have mode 0640, less the user's umask. Without
  /// write permission: exit 74, as for a full disk.
  static Descriptor to_write(const std::filesystem::path& path, int flags);
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;

  int get() const { return fd_; }
  const std::filesystem::path& path() const { return path_; }
  std::int64_t bytes() const;
  /// Reads up to `count` bytes at `offset`; fewer only at end-of-file. Returns the number read.
  std::int64_t read_some(std::int64_t offset, void* data, std::int64_t count) const;
  /// Reads exactly `count` bytes at `offset`, or throws.
  void read(std::int64_t offset, void* data, std::int64_t count) const;
  void write(std::int64_t offset, const void* data, std::int64_t count);
  /// Writes at the file position; with O_APPEND, at the end.
  void append(std::string_view text);
  void resize(std::int64_t bytes);
  /// Calls fsync: on return the data is on disk.
  void sync();

 private:
  friend void sync_folder(const std::filesystem::path& folder);
  Descriptor(int fd, std::filesystem::path path) : fd_(fd), path_(std::move(path)) {}
  void require_regular(ExitCode wrong_file) const;

  int fd_;
  std::filesystem::path path_;
};

/// Reads a whole regular file with at most `max_bytes`. A longer file also raises `wrong_file`.
std::string read_file(const std::filesystem::path& path, std::int64_t max_bytes,
                      ExitCode wrong_file = ExitCode::bad_input);

/// Calls visit(line, ended) for each line in the file, without its '\n'. `ended` is false for a
/// last line without one. Holds one line in memory at a time; a line above 1 MiB is a user error.
void for_each_line(const Descriptor& file,
                   const std::function<void(std::string_view line, bool ended)>& visit);

/// Returns "; did you mean 'inputs/tiny.yaml'?" for a path that does not exist, if a name in its
/// deepest existing folder, or in runs/, leads to one that does; else an empty string.
std::string did_you_mean_path(const std::filesystem::path& path);

/// Calls fsync on a folder: on return its names are on disk.
void sync_folder(const std::filesystem::path& folder);

/// Creates a folder and its parents with mode 0750, less the user's umask, and syncs the new ones
/// to disk.
void make_folder(const std::filesystem::path& folder);

/// Replaces `path` with what `write` puts into a new file: temporary name, fsync, rename, fsync on
/// the folder. A reader sees either the old or the new content.
void replace_durably(const std::filesystem::path& path,
                     const std::function<void(Descriptor&)>& write);
void write_durably(const std::filesystem::path& path, std::string_view text);

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

/// Swaps two names atomically. Returns false if the file system cannot.
bool exchange_paths(const std::filesystem::path& a, const std::filesystem::path& b);

/// Renames `path` to the first free name among NAME.quarantined-1, -2, ... Returns the new name.
std::filesystem::path quarantine(const std::filesystem::path& path,
                                 const std::filesystem::path& name);

}  // namespace llamesh
