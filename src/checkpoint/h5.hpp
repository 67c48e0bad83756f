#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.hpp"
#include "core/box.hpp"

/// The door to HDF5. Every failure is thrown (exit 74) with HDF5's own error stack. The library is
/// not thread-safe: one thread of a process at a time may be in here.
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
  /// Gives it up without closing it.
  void release();

 private:
  std::int64_t id_ = -1;
  Close close_ = nullptr;
};

/// A contiguous fp32 dataset, its elements in row-major order.
class Dataset {
 public:
  /// Throws unless it lies in this file, and as we write them: one to Tensor::max_dims dims of
  /// little-endian fp32, contiguous, all of its bytes there.
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

/// A file. One process lays it out or reads it on its own (POSIX; so no rank can wait for another
/// one over metadata that cannot be written or read); all ranks of a group then fill it together
/// (MPI-IO).
class File {
 public:
  /// To be laid out by this process. A file that is there is overwritten and keeps its mode.
  static File create(const std::filesystem::path& path);
  /// To fill the datasets of a file that is laid out, which changes no metadata. Collective, as is
  /// close() then. The hints ("key=value") go to the MPI-IO driver.
  static File open_to_fill(const std::filesystem::path& path, const comm::Communicator& group,
                           const std::vector<std::string>& hints);
  /// Throws unless it is a regular file. HDF5 opens it by its name once more: who can exchange
  /// files in the folder in between can still make it wait.
  static File open(const std::filesystem::path& path);

  /// Throws when the file has a link that leads elsewhere: an external one, or a soft one other
  /// than lm_head.weight to its group's model.embed_tokens.weight (link() makes those).
  void check_links() const;
  /// Space is taken at once and not filled. Missing groups of the path are made.
  Dataset create_dataset(const std::string& path, const Shape& shape);
  void create_attribute(const std::string& name, const std::string& text);
  void create_attribute(const std::string& name, std::int64_t number);
  /// Makes `path` another name of `target`.
  void link(const std::string& target, const std::string& path);
  Dataset dataset(const std::string& path) const;
  /// Leaves the file open for ever. After a failed write closing would flush, fail again on some
  /// rank, and let the other ranks wait for it.
  void abandon();
  /// The bytes are with the system then, not yet on the disk.
  void close();

 private:
  File(Handle handle, std::filesystem::path path);
  Handle handle_;
  std::filesystem::path path_;
};

/// Throws exit 78 unless each hint is "key=value" with a length that MPI takes.
void check_hints(const std::vector<std::string>& hints);

/// The number of the library, for --version.
std::string version();

}  // namespace llamesh::checkpoint::h5
