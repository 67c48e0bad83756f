#include "checkpoint/safetensors.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "checkpoint/files.hpp"
#include "core/error.hpp"

namespace llamesh::checkpoint {
namespace {

/// Maps a file read-only. Anything that is no regular file, e.g. a pipe, is refused before it is
/// opened.
std::span<const std::uint8_t> map(const std::filesystem::path& path) {
  std::error_code error;
  validate(std::filesystem::exists(path, error), "there is no file {}", path.string());
  validate(std::filesystem::is_regular_file(path, error), "{} is not a regular file",
           path.string());
  const Descriptor file(path, O_RDONLY);
  const auto size = static_cast<std::size_t>(file.bytes());
  validate(size > 0, "{} is empty", path.string());
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  validate(data != MAP_FAILED, "{} ({} bytes) cannot be mapped into memory: {}", path.string(),
           size, std::strerror(errno));
  return {static_cast<const std::uint8_t*>(data), size};
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), file_(map(path)) {
  try {
    tensors_ = parse_safetensors(file_, path_.string());
  } catch (...) {  // the destructor of what was never constructed does not run
    ::munmap(const_cast<std::uint8_t*>(file_.data()), file_.size());
    throw;
  }
  for (std::size_t i = 0; i < tensors_.size(); ++i) by_name_[tensors_[i].name] = i;
}

SafetensorsFile::~SafetensorsFile() {
  if (!file_.empty()) ::munmap(const_cast<std::uint8_t*>(file_.data()), file_.size());
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::exchange(other.file_, {})),
      tensors_(std::move(other.tensors_)),
      by_name_(std::move(other.by_name_)) {}

const StoredTensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::span<const std::uint8_t> SafetensorsFile::bytes(const StoredTensor& tensor) const {
  return file_.subspan(static_cast<std::size_t>(tensor.begin),
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
  to_floats(*type, file_.data() + tensor.begin + begin * size_of(*type), values);
}

}  // namespace llamesh::checkpoint
