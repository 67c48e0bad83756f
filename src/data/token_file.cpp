#include "data/token_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <limits>
#include <utility>

#include "core/error.hpp"
#include "data/megatron.hpp"
#include "data/token_ids.hpp"

namespace llamesh::data {
namespace {

// Limit from llm.c's header, and for a document from Megatron's index.
constexpr std::int64_t max_tokens = std::numeric_limits<std::int32_t>::max();

bool is_index(const std::string& path) {
  return path.ends_with(".idx");
}

}  // namespace

TokenFileWriter::TokenFileWriter(std::string path, std::int64_t vocab_size)
    : index_path_(is_index(path) ? path : ""),
      path_(is_index(path) ? megatron_stem(path) + ".bin" : std::move(path)),
      temporary_(fmt::format("{}.{}.tmp", path_, ::getpid())),
      wide_(vocab_size > std::numeric_limits<std::uint16_t>::max() + 1),
      file_(Descriptor::to_write(temporary_, O_WRONLY | O_CREAT | O_EXCL)),
      end_(is_pair() ? 0 : sizeof(token_header(2, 0))),
      mask_(path_) {}

TokenFileWriter::~TokenFileWriter() {
  if (!complete_) ::unlink(temporary_.c_str());
}

void TokenFileWriter::write(const void* bytes, std::size_t count) {
  file_.write(end_, bytes, static_cast<std::int64_t>(count));
  end_ += static_cast<std::int64_t>(count);
}

void TokenFileWriter::append(std::span<const std::int32_t> ids,
                             std::span<const std::int64_t> masked_ranges) {
  for (std::size_t i = 0; i < masked_ranges.size(); i += 2)
    mask_.mask(tokens_ + masked_ranges[i], tokens_ + masked_ranges[i + 1]);
  tokens_ += static_cast<std::int64_t>(ids.size());
  validate(is_pair() || tokens_ <= max_tokens,
           "more than {} tokens do not fit into one token file; give fewer files at a time, and "
           "list the token files in data.train, or write a Megatron-LM pair (--output NAME.idx)",
           max_tokens);
  if (wide_) return write(ids.data(), ids.size_bytes());
  narrowed_.assign(ids.begin(), ids.end());
  write(narrowed_.data(), narrowed_.size() * sizeof(std::uint16_t));
}

void TokenFileWriter::end_document() {
  const std::int64_t length = tokens_ - std::exchange(document_begin_, tokens_);
  if (!is_pair() || length == 0) return;
  validate(length <= max_tokens, "a document of {} tokens does not fit into '{}' (at most {})",
           length, index_path_, max_tokens);
  document_lengths_.push_back(static_cast<std::int32_t>(length));
}

void TokenFileWriter::commit() {
  validate(tokens_ > 0, "the input holds no text, so there are no tokens to write to '{}'", path_);
  const std::int64_t id_bytes = wide_ ? 4 : 2;
  if (!is_pair()) {
    const auto header =
        token_header(id_bytes, tokens_, mask_.masks() ? MaskBeside::yes : MaskBeside::no);
    file_.write(0, header.data(), sizeof(header));
  }
  file_.sync();
  mask_.commit(tokens_);
  rename_path(temporary_, path_);
  complete_ = true;
  if (is_pair()) write_durably(index_path_, megatron_index(document_lengths_, id_bytes));
}

}  // namespace llamesh::data
