#include "data/token_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include "core/error.hpp"

namespace llamesh::data {
namespace {

constexpr std::int64_t most_tokens = std::numeric_limits<std::int32_t>::max();  // by the header

[[noreturn]] void fail_io(const std::string& path, const char* action) {
  fail(ExitCode::io_failure, "token file '{}' cannot be {}: {}", path, action,
       std::strerror(errno));
}

}  // namespace

TokenFileWriter::TokenFileWriter(std::string path, std::int64_t vocab_size)
    : path_(std::move(path)),
      temporary_(fmt::format("{}.{}.tmp", path_, ::getpid())),
      wide_(vocab_size > std::numeric_limits<std::uint16_t>::max() + 1),
      file_(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) {
  if (file_ < 0) fail_io(temporary_, "created");
  try {
    const std::array<std::int32_t, 256> place_of_header{};
    write(place_of_header.data(), sizeof(place_of_header));
  } catch (...) {
    ::close(file_);
    ::unlink(temporary_.c_str());
    throw;
  }
}

TokenFileWriter::~TokenFileWriter() {
  if (file_ < 0) return;  // committed
  ::close(file_);
  ::unlink(temporary_.c_str());
}

void TokenFileWriter::write(const void* bytes, std::size_t count) {
  const auto* at = static_cast<const char*>(bytes);
  while (count > 0) {
    const auto written = ::write(file_, at, count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_io(temporary_, "written");
    at += written;
    count -= static_cast<std::size_t>(written);
  }
}

void TokenFileWriter::append(std::span<const std::int32_t> ids) {
  tokens_ += static_cast<std::int64_t>(ids.size());
  validate(tokens_ <= most_tokens,
           "more than {} tokens do not fit into one token file; give fewer files at a time, and "
           "list the token files in data.train",
           most_tokens);
  if (wide_) return write(ids.data(), ids.size_bytes());
  narrowed_.assign(ids.begin(), ids.end());
  write(narrowed_.data(), narrowed_.size() * sizeof(std::uint16_t));
}

void TokenFileWriter::commit() {
  validate(tokens_ > 0, "the input holds no text, so there are no tokens to write to '{}'", path_);
  const std::array<std::int32_t, 3> header = {wide_ ? 20240801 : 20240520, wide_ ? 7 : 1,
                                              static_cast<std::int32_t>(tokens_)};
  if (::pwrite(file_, header.data(), sizeof(header), 0) != static_cast<ssize_t>(sizeof(header)))
    fail_io(temporary_, "written");
  if (::fsync(file_) != 0) fail_io(temporary_, "written");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail_io(path_, "created");
  ::close(std::exchange(file_, -1));
}

}  // namespace llamesh::data
