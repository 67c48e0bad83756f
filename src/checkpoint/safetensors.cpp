#include "checkpoint/safetensors.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "checkpoint/files.hpp"
#include "core/error.hpp"

namespace llamesh::checkpoint {
namespace {

/// Anything that is no regular file, e.g. a pipe, is refused before it is opened.
Descriptor open(const std::filesystem::path& path) {
  std::error_code error;
  validate(std::filesystem::exists(path, error), "there is no file {}", path.string());
  validate(std::filesystem::is_regular_file(path, error), "{} is not a regular file",
           path.string());
  return {path, O_RDONLY};
}

std::span<const std::uint8_t> map(const Descriptor& file, const std::filesystem::path& path) {
  const auto size = static_cast<std::size_t>(file.bytes());
  validate(size > 0, "{} is empty", path.string());
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  validate(data != MAP_FAILED, "{} ({} bytes) cannot be mapped into memory: {}", path.string(),
           size, std::strerror(errno));
  // Read from the disk 2 MiB at a time where the file system can; by pages it takes five times as
  // long (ext4, Linux 6.18). Where it cannot there is no harm done.
  ::madvise(data, size, MADV_HUGEPAGE);
  return {static_cast<const std::uint8_t*>(data), size};
}

/// Tells the system that a mapped range has been read: it is not of this process's memory any more
/// and stays in the page cache.
void give_back(const std::uint8_t* begin, std::int64_t bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(begin) / page * page;
  const auto last = reinterpret_cast<std::uintptr_t>(begin) + static_cast<std::uintptr_t>(bytes);
  ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

/// Converts out of the mapping, of which only a part is in memory at a time.
void convert(StoredType type, const std::uint8_t* from, std::span<float> values) {
  constexpr std::size_t at_a_time = std::size_t{8} << 20U;
  for (std::size_t at = 0; at < values.size(); at += at_a_time) {
    const auto part = values.subspan(at, std::min(at_a_time, values.size() - at));
    const auto* const begin = from + static_cast<std::int64_t>(at) * size_of(type);
    to_floats(type, begin, part);
    give_back(begin, std::ssize(part) * size_of(type));
  }
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), file_(open(path)), mapped_(map(file_, path)) {
  try {
    tensors_ = parse_safetensors(mapped_, path_.string());
  } catch (...) {  // the destructor of what was never constructed does not run
    ::munmap(const_cast<std::uint8_t*>(mapped_.data()), mapped_.size());
    throw;
  }
  for (std::size_t i = 0; i < tensors_.size(); ++i) by_name_[tensors_[i].name] = i;
}

SafetensorsFile::~SafetensorsFile() {
  if (!mapped_.empty()) ::munmap(const_cast<std::uint8_t*>(mapped_.data()), mapped_.size());
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::move(other.file_)),
      mapped_(std::exchange(other.mapped_, {})),
      tensors_(std::move(other.tensors_)),
      by_name_(std::move(other.by_name_)) {}

const StoredTensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::span<const std::uint8_t> SafetensorsFile::bytes(const StoredTensor& tensor) const {
  return mapped_.subspan(static_cast<std::size_t>(tensor.begin),
                         static_cast<std::size_t>(tensor.bytes));
}

void SafetensorsFile::read(const StoredTensor& tensor, std::int64_t begin,
                           std::span<float> values) const {
  const auto type = stored_type(tensor.dtype);
  validate(type.has_value(), "{}: tensor '{}' is {}; F32, BF16 and F16 are read", path_.string(),
           shown(tensor.name), shown(tensor.dtype));
  expects(begin >= 0 && std::ssize(values) <= tensor.numel() - begin,
          "elements {} to {} are asked of '{}', which has {}", begin, begin + std::ssize(values),
          tensor.name, tensor.numel());
  const auto at = tensor.begin + begin * size_of(*type);
  // Where nothing is converted the system's own copy is quicker than one out of the mapping, which
  // has to be paged in (1.0 against 0.7 of memcpy's speed); where something is, it is the other way
  // round.
  if (*type == StoredType::f32)
    file_.read(at, values.data(), static_cast<std::int64_t>(values.size_bytes()));
  else
    convert(*type, mapped_.data() + at, values);
}

}  // namespace llamesh::checkpoint
