#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/mpi/communicator.hpp"
#include "core/box.hpp"

/// Wrapper around HDF5. Every failure throws (exit 74) with HDF5's error stack. HDF5 is not
/// thread-safe: only one thread per process may use it at a time.
namespace llamesh::checkpoint::h5 {

/// An owned HDF5 identifier (hid_t). Move-only; the destructor logs errors.
class Handle {
 public:
  using Close = int (*)(std::int64_t);

  Handle() = default;
  /// Throws unless `id` is valid. `doing` names the attempted operation.
  Handle(std::int64_t id, Close closer, std::string_view doing);
  ~Handle();
  Handle(Handle&& other) noexcept;
  Handle& operator=(Handle&& other) noexcept;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  std::int64_t id() const { return id_; }
  /// Closes now, and throws if that fails.
  void close(std::string_view doing);
  /// Releases the identifier without closing it.
  void release();

 private:
  std::int64_t id_ = -1;
  Close close_ = nullptr;
};

/// A contiguous fp32 dataset with elements in row-major order.
class Dataset {
 public:
  /// Throws unless the dataset is stored in this file the way llamesh writes it: one to
  /// Tensor::max_dims dims, little-endian fp32, contiguous, complete.
  Dataset(Handle handle, std::string path);

  const Shape& shape() const { return shape_; }
  /// Returns the file offset of the first byte.
  std::int64_t offset() const;
  /// Transfers values.size() elements of a box, from its element `begin` on, at most 1 GiB.
  /// Independent of other ranks.
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

/// An HDF5 file. One process creates or reads its structure with the POSIX driver, so that no rank
/// waits for another over metadata that cannot be written or read. Then all ranks in a group fill
/// it with the MPI-IO driver.
class File {
 public:
  /// Creates the file on this process. Overwrites an existing file and keeps its mode.
  static File create(const std::filesystem::path& path);
  /// Opens an existing file to fill its datasets, without changing metadata. Collective, and so is
  /// its close(). The hints ("key=value") go to the MPI-IO driver.
  static File open_to_fill(const std::filesystem::path& path, const comm::Communicator& group,
                           const std::vector<std::string>& hints);
  /// Throws unless the path is a regular file. HDF5 then opens it again by name: a file swapped in
  /// between can still block.
  static File open(const std::filesystem::path& path);

  /// Throws if the file has any link other than those made by link(): an external link, or a soft
  /// link other than lm_head.weight to another dataset of its group.
  void check_links() const;
  /// Creates a dataset and any missing groups in its path. Allocates its space now, without filling
  /// it.
  Dataset create_dataset(const std::string& path, const Shape& shape);
  void create_attribute(const std::string& name, const std::string& text);
  void create_attribute(const std::string& name, std::int64_t number);
  /// Makes `path` another name for `target`.
  void link(const std::string& target, const std::string& path);
  Dataset dataset(const std::string& path) const;
  /// Abandons the file without closing it. After a failed write, closing would flush, fail again on
  /// some rank, and leave the other ranks waiting for it.
  void abandon();
  /// Closes the file. The bytes are then in the page cache, not yet on disk.
  void close();

 private:
  File(Handle handle, std::filesystem::path path);
  Handle handle_;
  std::filesystem::path path_;
};

/// Throws exit 78 unless each hint is "key=value" within MPI's length limits.
void check_hints(const std::vector<std::string>& hints);

/// Returns the HDF5 version, for --version.
std::string version();

}  // namespace llamesh::checkpoint::h5
