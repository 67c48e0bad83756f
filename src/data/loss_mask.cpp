#include "data/loss_mask.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "data/megatron.hpp"
#include "data/numpy_array.hpp"

namespace llamesh::data {
namespace {

constexpr std::string_view ending = ".mask.npy";

/// Returns the mask's bytes, with or without NumPy's header.
std::span<const std::uint8_t> bytes_of_mask(const MappedFile& file) {
  if (!has_numpy_header(file.bytes())) return file.bytes();
  const auto array = numpy_array(file.bytes(), file.path());
  validate(array.dtype == "|b1" || array.dtype == "|u1" || array.dtype == "|i1",
           "loss mask '{}' has dtype {}; save it as bool or uint8, with one element per token",
           file.path(), printable(array.dtype));
  validate(array.size == std::ssize(array.values),
           "loss mask '{}' has {} bytes after its header, which promises {}; write it again",
           file.path(), array.values.size(), array.size);
  return array.values;
}

}  // namespace

std::string loss_mask_path(const std::string& token_file) {
  auto name = megatron_stem(token_file);
  if (name.ends_with(".npy")) name.resize(name.size() - 4);
  return name.append(ending);
}

bool is_loss_mask(const std::string& path) {
  return path.ends_with(ending);
}

std::optional<LossMask> LossMask::beside(const std::string& token_file, std::int64_t tokens) {
  const auto path = loss_mask_path(token_file);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  MappedFile file(path);
  const auto bytes = bytes_of_mask(file);
  validate(std::ssize(bytes) == tokens,
           "loss mask '{}' is for {} tokens, but '{}' has {}; write both again, or move the mask "
           "away",
           path, bytes.size(), token_file, tokens);
  return LossMask(std::move(file), bytes);
}

void LossMask::apply(std::int64_t first, std::span<std::int32_t> targets) const {
  const auto part = bytes_.subspan(static_cast<std::size_t>(first), targets.size());
  std::uint8_t all = 0;
  for (std::size_t i = 0; i < part.size(); ++i) {
    all |= part[i];
    if (part[i] == 0) targets[i] = ignored_target;
  }
  if (all <= 1) return;
  const auto bad = std::ranges::find_if(part, [](std::uint8_t value) { return value > 1; });
  fail(ExitCode::bad_input, "loss mask '{}' has {} for token {}; it must be 0 or 1", file_.path(),
       *bad, first + (bad - part.begin()));
}

std::int64_t LossMask::next_counted(std::int64_t first, std::int64_t last) const {
  const auto part =
      bytes_.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
  return first +
         (std::ranges::find_if(part, [](std::uint8_t value) { return value != 0; }) - part.begin());
}

LossMaskWriter::LossMaskWriter(const std::string& token_file)
    : path_(loss_mask_path(token_file)), temporary_(fmt::format("{}.{}.tmp", path_, ::getpid())) {}

LossMaskWriter::~LossMaskWriter() {
  if (file_ && !complete_) ::unlink(temporary_.c_str());
}

void LossMaskWriter::mask(std::int64_t begin, std::int64_t end) {
  if (!file_) file_ = Descriptor::to_write(temporary_, O_WRONLY | O_CREAT | O_EXCL);
  fill(begin, 1);
  fill(end, 0);
}

void LossMaskWriter::fill(std::int64_t end, std::uint8_t value) {
  constexpr std::int64_t max_bytes = 1 << 20;
  const std::vector<std::uint8_t> block(static_cast<std::size_t>(std::min(end - end_, max_bytes)),
                                        value);
  while (end_ < end) {
    const auto count = std::min(end - end_, max_bytes);
    file_->write(numpy_header_bytes + end_, block.data(), count);
    end_ += count;
  }
}

void LossMaskWriter::commit(std::int64_t tokens) {
  if (!file_) {
    ::unlink(path_.c_str());
    return;
  }
  fill(tokens, 1);
  const auto header = numpy_header("|u1", tokens);
  file_->write(0, header.data(), std::ssize(header));
  file_->sync();
  rename_path(temporary_, path_);
  complete_ = true;
}

}  // namespace llamesh::data
