#include "data/megatron.hpp"

#include <string_view>

#include "core/error.hpp"

namespace llamesh::data {
namespace {

constexpr std::string_view index_magic("MMIDIDX\0\0", 9);
constexpr std::size_t index_header_bytes = 9 + 8 + 1 + 8 + 8;

std::int64_t id_bytes_of(const std::string& path, int code) {
  constexpr const char* names[] = {"uint8", "int8",    "int16",   "int32",
                                   "int64", "float64", "float32", "uint16"};
  validate(code >= 1 && code <= 8, "'{}' has ids of the unknown type {}; it is malformed", path,
           code);
  validate(code == 1 || code == 4 || code == 8,
           "'{}' has ids of type {}; only uint8, uint16 and int32 are supported", path,
           names[code - 1]);
  return code == 1 ? 1 : code == 4 ? 4 : 2;
}

}  // namespace

std::string megatron_stem(const std::string& name) {
  for (const std::string_view extension : {".bin", ".idx"})
    if (name.ends_with(extension)) return name.substr(0, name.size() - extension.size());
  return name;
}

bool is_megatron_index(std::string_view bytes) {
  return bytes.starts_with(index_magic);
}

MegatronIndex::MegatronIndex(std::span<const std::uint8_t> bytes, const std::string& path,
                             const IdsFile& ids) {
  const std::uint8_t* at = bytes.data();
  validate(bytes.size() >= index_header_bytes,
           "'{}' is truncated: {} bytes, but the header of a Megatron index alone has {}", path,
           bytes.size(), index_header_bytes);
  validate(std::memcmp(at, index_magic.data(), index_magic.size()) == 0,
           "'{}' does not begin with MMIDIDX, as the index of a Megatron pair does", path);
  const auto version = load<std::uint64_t>(at + 9);
  validate(version == 1, "'{}' has version {} of Megatron's index; only version 1 is supported",
           path, version);
  id_bytes_ = id_bytes_of(path, at[17]);
  ids_ = ids.bytes / id_bytes_;
  const auto sequences = load<std::uint64_t>(at + 18);
  const auto documents = load<std::uint64_t>(at + 26);
  const std::uint64_t rest = bytes.size() - index_header_bytes;
  // This order cannot overflow.
  validate(
      sequences <= rest / 12 && documents <= rest / 8 && sequences * 12 + documents * 8 == rest,
      "'{}' promises {} sequences and {} documents, which does not match its {} bytes; it is "
      "truncated, or multimodal, which is not supported",
      path, sequences, documents, bytes.size());
  sequences_ = static_cast<std::int64_t>(sequences);
  documents_ = static_cast<std::int64_t>(documents);
  lengths_ = at + index_header_bytes;
  pointers_ = lengths_ + sequences_ * 4;
  firsts_ = pointers_ + sequences_ * 8;
  check_sequences(path, ids);
  check_documents(path);
}

/// Checks that the sequences are contiguous and fill the .bin, as Megatron writes them.
void MegatronIndex::check_sequences(const std::string& path, const IdsFile& ids) const {
  std::int64_t end = 0;
  for (std::int64_t i = 0; i < sequences_; ++i) {
    const auto pointer = load<std::int64_t>(pointers_, i);
    const std::int64_t length = load<std::int32_t>(lengths_, i);
    validate(pointer == end,
             "'{}': sequence {} begins at byte {}, but those before it end at {}; write the pair "
             "again",
             path, i, pointer, end);
    end += length * id_bytes_;
    validate(length >= 0 && end <= ids.bytes,
             "'{}': sequence {} of {} ids is outside '{}' of {} bytes; it is truncated, or not "
             "of this pair",
             path, i, length, ids.path, ids.bytes);
  }
  validate(end == ids.bytes, "'{}' describes {} bytes of '{}', which has {}; they are not one pair",
           path, end, ids.path, ids.bytes);
}

void MegatronIndex::check_documents(const std::string& path) const {
  std::int64_t before = 0;
  for (std::int64_t i = 0; i < documents_; ++i) {
    const auto first = load<std::int64_t>(firsts_, i);
    validate(first >= before && first <= sequences_ && (i > 0 || first == 0),
             "'{}': document {} begins with sequence {} of {}, after one that begins with {}; "
             "write the pair again",
             path, i, first, sequences_, before);
    before = first;
  }
  validate(before == sequences_, "'{}': the documents end with sequence {}, but there are {}", path,
           before, sequences_);
}

std::int64_t MegatronIndex::begin_of(std::int64_t document) const {
  const auto first = load<std::int64_t>(firsts_, document);
  return first == sequences_ ? ids_ : load<std::int64_t>(pointers_, first) / id_bytes_;
}

std::int64_t MegatronIndex::next_document(std::int64_t from) const {
  std::int64_t low = 0;
  std::int64_t high = documents_ - 1;  // the last one is the end
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (begin_of(middle) >= from)
      high = middle;
    else
      low = middle + 1;
  }
  return begin_of(low);
}

std::string megatron_index(std::span<const std::int32_t> lengths, std::int64_t id_bytes) {
  std::string index(index_magic);
  const auto append = [&](const auto& number) {
    index.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  const std::int64_t documents = std::ssize(lengths);
  append(std::uint64_t{1});
  append(static_cast<std::uint8_t>(id_bytes == 4 ? 4 : 8));
  append(documents);
  append(documents + 1);
  for (const std::int32_t length : lengths) append(length);
  std::int64_t pointer = 0;
  for (const std::int32_t length : lengths) {
    append(pointer);
    pointer += length * id_bytes;
  }
  for (std::int64_t i = 0; i <= documents; ++i) append(i);
  return index;
}

MegatronFile::MegatronFile(const std::string& name)
    : index_file_(megatron_stem(name) + ".idx"),
      ids_file_(megatron_stem(name) + ".bin"),
      index_(index_file_.bytes(), index_file_.path(),
             {ids_file_.path(), static_cast<std::int64_t>(ids_file_.bytes().size())}) {}

}  // namespace llamesh::data
