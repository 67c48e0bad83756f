#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>

#include "core/error.hpp"

/// The one way to open, read and write files. A FIFO, device, socket or link where a file is
/// expected neither blocks the program nor redirects its writes.
///
/// Errors name the path and the system's reason: bad_input (exit 78) where the path leads to no
/// file that could be used, io_failure (exit 74) where the disk is at fault.
namespace llamesh {

/// bad_input where the system's error is about the path's name or permissions, else io_failure.
ExitCode exit_code_of(const std::error_code& reason);

/// Owns the file descriptor of a regular file or a folder. Move-only.
class Descriptor {
 public:
  /// Opens a regular file for reading; links are followed. `wrong_file` is the code of the error
  /// when there is no such file, or it is not a regular one.
  static Descriptor to_read(const std::filesystem::path& path,
                            ExitCode wrong_file = ExitCode::bad_input);
  /// Opens a regular file, and no link, for writing. `flags` of open(2): the access mode, O_CREAT,
  /// O_EXCL, O_TRUNC, O_APPEND. New files are 0640 within the user's umask. Without write
  /// permission: exit 74, as for a full disk.
  static Descriptor to_write(const std::filesystem::path& path, int flags);
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;

  int get() const { return fd_; }
  const std::filesystem::path& path() const { return path_; }
  std::int64_t bytes() const;
  /// Up to `count` bytes at `offset`: fewer only where the file ends. Returns how many.
  std::int64_t read_some(std::int64_t offset, void* data, std::int64_t count) const;
  /// Exactly `count` bytes at `offset`, or throws.
  void read(std::int64_t offset, void* data, std::int64_t count) const;
  void write(std::int64_t offset, const void* data, std::int64_t count);
  /// Writes at the file's position; with O_APPEND at its end.
  void append(std::string_view text);
  void resize(std::int64_t bytes);
  /// fsync: returns when the bytes are on the disk.
  void sync();

 private:
  friend void sync_folder(const std::filesystem::path& folder);
  Descriptor(int fd, std::filesystem::path path) : fd_(fd), path_(std::move(path)) {}
  void require_regular(ExitCode wrong_file) const;

  int fd_;
  std::filesystem::path path_;
};

/// A whole regular file of at most `most_bytes`. A longer one is `wrong_file` too.
std::string read_file(const std::filesystem::path& path, std::int64_t most_bytes,
                      ExitCode wrong_file = ExitCode::bad_input);

/// Calls visit(line, ended) for each line of the file, without its '\n'. `ended` is false for a
/// last line that has none. Only one line at a time is in memory; one of more than 1 MiB is a user
/// error.
void for_each_line(const Descriptor& file,
                   const std::function<void(std::string_view line, bool ended)>& visit);

/// fsync of a folder: the names in it are on the disk.
void sync_folder(const std::filesystem::path& folder);

/// A folder 0750 within the user's umask, with its parents. Those that are made are on the disk.
void make_folder(const std::filesystem::path& folder);

/// Replaces `path` by what `write` puts into a new file: temporary name, fsync, rename, fsync of
/// the folder. A reader sees the old content or the new one.
void replace_durably(const std::filesystem::path& path,
                     const std::function<void(Descriptor&)>& write);
void write_durably(const std::filesystem::path& path, std::string_view text);

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

/// Swaps two names in one step; false where the file system cannot.
bool exchange_paths(const std::filesystem::path& a, const std::filesystem::path& b);

/// Renames `path` to the first free one of NAME.quarantined-1, -2, ...; returns the new name.
std::filesystem::path quarantine(const std::filesystem::path& path,
                                 const std::filesystem::path& name);

}  // namespace llamesh
