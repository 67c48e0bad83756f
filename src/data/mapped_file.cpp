#include "data/mapped_file.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "core/error.hpp"

namespace llamesh::data {

MappedFile::MappedFile(const std::string& path) : MappedFile(Descriptor::to_read(path)) {}

MappedFile::MappedFile(const Descriptor& file) : path_(file.path().string()) {
  const auto size = static_cast<std::size_t>(file.bytes());
  validate(size > 0, "'{}' is empty", path_);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  validate(data != MAP_FAILED, "'{}' ({} bytes) cannot be mapped into memory: {}", path_, size,
           std::strerror(errno));
  bytes_ = {static_cast<const std::uint8_t*>(data), size};
  range_ = std::make_unique<MappedRange>(std::as_bytes(bytes_), MappedRange::Kind::file);
}

MappedFile::~MappedFile() {
  range_.reset();
  if (!bytes_.empty()) ::munmap(const_cast<std::uint8_t*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      bytes_(std::exchange(other.bytes_, {})),
      range_(std::move(other.range_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(range_, other.range_);
  return *this;
}

void MappedFile::fail_lost() const {
  struct stat status {};
  const std::int64_t now = ::stat(path_.c_str(), &status) == 0 ? status.st_size : 0;
  const auto before = static_cast<std::int64_t>(bytes_.size());
  validate(now >= before,
           "data file '{}' was truncated while it was in use: it had {} bytes and has {} now, and "
           "those from {} on could not be read; restore the file",
           path_, before, now, range_->lost_at());
  fail(ExitCode::io_failure, "data file '{}' cannot be read from byte {} on", path_,
       range_->lost_at());
}

void read_soon(std::span<const std::uint8_t> bytes) noexcept {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(bytes.data());
  const auto begin = first / page * page;
  ::madvise(reinterpret_cast<void*>(begin), first + bytes.size() - begin, MADV_WILLNEED);
}

}  // namespace llamesh::data
