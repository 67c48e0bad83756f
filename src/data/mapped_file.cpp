#include "data/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "core/error.hpp"

namespace llamesh::data {
namespace {

/// A file descriptor, closed at the end of its scope.
class Descriptor {
 public:
  // O_NONBLOCK: opening a named pipe without a writer would wait for ever.
  explicit Descriptor(const std::string& path)
      : value_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int value() const { return value_; }

 private:
  int value_;
};

}  // namespace

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  const Descriptor file(path_);
  validate(file.value() >= 0,
           "data file '{}' cannot be opened: {}; check data.train and "
           "data.validation",
           path_, std::strerror(errno));
  struct stat status {};
  validate(::fstat(file.value(), &status) == 0, "data file '{}' cannot be examined: {}", path_,
           std::strerror(errno));
  validate(!S_ISDIR(status.st_mode), "data file '{}' is a folder; name the files in it", path_);
  validate(S_ISREG(status.st_mode), "data file '{}' is not a regular file", path_);
  validate(status.st_size > 0, "data file '{}' is empty", path_);
  const auto size = static_cast<std::size_t>(status.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.value(), 0);
  validate(data != MAP_FAILED, "data file '{}' ({} bytes) cannot be mapped into memory: {}", path_,
           size, std::strerror(errno));
  bytes_ = {static_cast<const std::uint8_t*>(data), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::uint8_t*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void read_soon(std::span<const std::uint8_t> bytes) noexcept {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(bytes.data());
  const auto begin = first / page * page;
  ::madvise(reinterpret_cast<void*>(begin), first + bytes.size() - begin, MADV_WILLNEED);
}

}  // namespace llamesh::data
