#include "data/token_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <limits>
#include <utility>

#include "core/error.hpp"
#include "data/token_ids.hpp"

namespace llamesh::data {
namespace {

constexpr std::int64_t max_tokens = std::numeric_limits<std::int32_t>::max();  // header limit

}  // namespace

TokenFileWriter::TokenFileWriter(std::string path, std::int64_t vocab_size)
    : path_(std::move(path)),
      temporary_(fmt::format("{}.{}.tmp", path_, ::getpid())),
      wide_(vocab_size > std::numeric_limits<std::uint16_t>::max() + 1),
      file_(Descriptor::to_write(temporary_, O_WRONLY | O_CREAT | O_EXCL)),
      end_(sizeof(token_header(2, 0))) {}

TokenFileWriter::~TokenFileWriter() {
  if (!complete_) ::unlink(temporary_.c_str());
}

void TokenFileWriter::write(const void* bytes, std::size_t count) {
  file_.write(end_, bytes, static_cast<std::int64_t>(count));
  end_ += static_cast<std::int64_t>(count);
}

void TokenFileWriter::append(std::span<const std::int32_t> ids) {
  tokens_ += static_cast<std::int64_t>(ids.size());
  validate(tokens_ <= max_tokens,
           "more than {} tokens do not fit into one token file; give fewer files at a time, and "
           "list the token files in data.train",
           max_tokens);
  if (wide_) return write(ids.data(), ids.size_bytes());
  narrowed_.assign(ids.begin(), ids.end());
  write(narrowed_.data(), narrowed_.size() * sizeof(std::uint16_t));
}

void TokenFileWriter::commit() {
  validate(tokens_ > 0, "the input holds no text, so there are no tokens to write to '{}'", path_);
  const auto header = token_header(wide_ ? 4 : 2, tokens_);
  file_.write(0, header.data(), sizeof(header));
  file_.sync();
  rename_path(temporary_, path_);
  complete_ = true;
}

}  // namespace llamesh::data
