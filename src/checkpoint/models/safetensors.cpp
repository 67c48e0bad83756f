#include "checkpoint/models/safetensors.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "core/error.hpp"

namespace llamesh::checkpoint {
namespace {

/// Unmaps the pages in a range that has been read (MADV_DONTNEED); they stay in the page cache.
void drop_pages(const std::uint8_t* begin, std::int64_t bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto before =
      reinterpret_cast<std::uintptr_t>(begin) % page;  // bytes before it in the first page
  ::madvise(const_cast<std::uint8_t*>(begin - before), before + static_cast<std::size_t>(bytes),
            MADV_DONTNEED);
}

/// Converts from the mapping, keeping only part of it resident at a time.
void convert(StoredType type, const std::uint8_t* from, std::span<float> values) {
  constexpr std::size_t at_a_time = std::size_t{8} << 20U;
  for (std::size_t at = 0; at < values.size(); at += at_a_time) {
    const auto part = values.subspan(at, std::min(at_a_time, values.size() - at));
    const auto* const begin = from + static_cast<std::int64_t>(at) * size_of(type);
    to_floats(type, begin, part);
    drop_pages(begin, std::ssize(part) * size_of(type));
  }
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(Descriptor::to_read(path)),
      mapped_(file_),
      tensors_(parse_safetensors(mapped_.bytes(), path.string())) {
  // Read 2 MiB at a time if the file system can: page by page takes five times as long (ext4, Linux
  // 6.18). Otherwise this does nothing.
  const auto bytes = mapped_.bytes();
  ::madvise(const_cast<std::uint8_t*>(bytes.data()), bytes.size(), MADV_HUGEPAGE);
  for (std::size_t i = 0; i < tensors_.size(); ++i) by_name_[tensors_[i].name] = i;
}

const StoredTensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

void SafetensorsFile::read_bytes(const StoredTensor& tensor, std::int64_t begin,
                                 std::span<std::uint8_t> to) const {
  expects(begin >= 0 && std::ssize(to) <= tensor.bytes - begin,
          "bytes {} to {} are asked of '{}', which has {}", begin, begin + std::ssize(to),
          tensor.name, tensor.bytes);
  file_.read(tensor.begin + begin, to.data(), std::ssize(to));
}

void SafetensorsFile::read(const StoredTensor& tensor, std::int64_t begin,
                           std::span<float> values) const {
  const auto type = stored_type(tensor.dtype);
  validate(type.has_value(), "{}: tensor '{}' is {}; {}", file_.path().string(), shown(tensor.name),
           shown(tensor.dtype), readable_types);
  expects(begin >= 0 && std::ssize(values) <= tensor.numel() - begin,
          "elements {} to {} are asked of '{}', which has {}", begin, begin + std::ssize(values),
          tensor.name, tensor.numel());
  const auto at = tensor.begin + begin * size_of(*type);
  // Without a conversion, read() beats copying from the mapping, which must be paged in (1.0
  // against 0.7 times memcpy speed). With a conversion the mapping wins.
  if (*type == StoredType::f32)
    file_.read(at, values.data(), static_cast<std::int64_t>(values.size_bytes()));
  else
    convert(*type, mapped_.bytes().data() + at, values);
}

}  // namespace llamesh::checkpoint
