#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.hpp"
#include "core/box.hpp"

/// The wrapper of HDF5. Every failure is thrown (exit 74) with HDF5's error stack. The library is
/// not thread-safe: only one thread of a process at a time may use it.
namespace llamesh::checkpoint::h5 {

/// Owns an HDF5 identifier (hid_t). Move-only; the destructor logs what it cannot report.
class Handle {
 public:
  using Close = int (*)(std::int64_t);

  Handle() = default;
  /// Throws unless `id` is valid. `doing` says what was tried.
  Handle(std::int64_t id, Close closer, std::string_view doing);
  ~Handle();
  Handle(Handle&& other) noexcept;
  Handle& operator=(Handle&& other) noexcept;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  std::int64_t id() const { return id_; }
  /// Closes now, and throws when that fails.
  void close(std::string_view doing);
  /// Releases it without closing it.
  void release();

 private:
  std::int64_t id_ = -1;
  Close close_ = nullptr;
};

/// A contiguous fp32 dataset, its elements in row-major order.
class Dataset {
 public:
  /// Throws unless it is stored in this file as llamesh writes datasets: one to Tensor::max_dims
  /// dims of little-endian fp32, contiguous, with all of its bytes.
  Dataset(Handle handle, std::string path);

  const Shape& shape() const { return shape_; }
  /// Where its bytes start in the file.
  std::int64_t offset() const;
  /// As many elements of a box as there are values, from its element `begin` on, at most 1 GiB of
  /// them. Independent of other ranks.
  void write(const Box& box, std::int64_t begin, std::span<const float> values);
  void read(const Box& box, std::int64_t begin, std::span<float> values) const;

 private:
  enum class Direction : bool { read, write };
  void transfer(const BoxRange& range, float* data, Direction direction) const;
  void transfer_box(const Box& box, float* data, Direction direction) const;

  Handle handle_;
  std::string path_;
  Shape shape_;
};

/// A file. One process creates its structure, or reads it, with the POSIX driver, so that no rank
/// waits for another over metadata that cannot be written or read; then all ranks of a group fill
/// it with the MPI-IO driver.
class File {
 public:
  /// Creates the file on this process. An existing file is overwritten and keeps its mode.
  static File create(const std::filesystem::path& path);
  /// Opens an existing file to fill its datasets, which changes no metadata. Collective, as is
  /// close() then. The hints ("key=value") go to the MPI-IO driver.
  static File open_to_fill(const std::filesystem::path& path, const comm::Communicator& group,
                           const std::vector<std::string>& hints);
  /// Throws unless it is a regular file. HDF5 opens it by its name once more: a file exchanged in
  /// between can still block it.
  static File open(const std::filesystem::path& path);

  /// Throws when the file has a link other than our own: an external one, or a soft one other than
  /// lm_head.weight to its group's model.embed_tokens.weight (link() makes those).
  void check_links() const;
  /// Space is allocated at once and not filled. Missing groups of the path are created.
  Dataset create_dataset(const std::string& path, const Shape& shape);
  void create_attribute(const std::string& name, const std::string& text);
  void create_attribute(const std::string& name, std::int64_t number);
  /// Makes `path` another name of `target`.
  void link(const std::string& target, const std::string& path);
  Dataset dataset(const std::string& path) const;
  /// Abandons the file without closing it. After a failed write closing would flush, fail again on
  /// some rank, and leave the other ranks waiting for it.
  void abandon();
  /// The bytes are then in the page cache, not yet on the disk.
  void close();

 private:
  File(Handle handle, std::filesystem::path path);
  Handle handle_;
  std::filesystem::path path_;
};

/// Throws exit 78 unless each hint is "key=value" with a length that MPI allows.
void check_hints(const std::vector<std::string>& hints);

/// The library's version, for --version.
std::string version();

}  // namespace llamesh::checkpoint::h5
