#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "checkpoint/models/safetensors.hpp"
#include "core/error.hpp"
#include "core/json.hpp"

namespace llamesh::checkpoint {
namespace {

constexpr std::size_t max_dims = 16;

/// Returns the bytes per element; 0 for unknown types.
std::int64_t bytes_of_dtype(std::string_view dtype) {
  using Entry = std::pair<std::string_view, std::int64_t>;
  constexpr std::array<Entry, 17> sizes{{{"F32", 4},
                                         {"BF16", 2},
                                         {"F16", 2},
                                         {"F64", 8},
                                         {"I64", 8},
                                         {"I32", 4},
                                         {"I16", 2},
                                         {"I8", 1},
                                         {"U64", 8},
                                         {"U32", 4},
                                         {"U16", 2},
                                         {"U8", 1},
                                         {"BOOL", 1},
                                         {"C64", 8},
                                         {"F8_E4M3", 1},
                                         {"F8_E5M2", 1},
                                         {"F8_E8M0", 1}}};
  const auto found = std::ranges::find(sizes, dtype, &Entry::first);
  return found == sizes.end() ? 0 : found->second;
}

/// A SAX handler for the header's JSON that refuses the first unexpected value. So nothing can
/// nest, and memory is bounded by the tensors' needs.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const std::string& file) : file_(file) {}
  std::vector<StoredTensor> take() { return std::move(tensors_); }

  bool start_object(std::size_t) override {
    switch (at_) {
      case At::start:
        at_ = At::names;
        return true;
      case At::names:
        at_ = in_metadata_ ? At::metadata : At::tensor;
        return true;
      default:
        return misplaced("an object");
    }
  }
  bool end_object() override {
    if (at_ == At::tensor)
      validate(has_dtype_ && has_shape_ && has_offsets_,
               "{}: tensor '{}' lacks its dtype, shape or data_offsets", file_,
               shown(tensors_.back().name));
    at_ = at_ == At::names ? At::end : At::names;
    return true;
  }
  bool start_array(std::size_t) override {
    if (at_ != At::tensor || (key_ != "shape" && key_ != "data_offsets"))
      return misplaced("a list");
    at_ = key_ == "shape" ? At::shape : At::offsets;
    numbers_.clear();
    return true;
  }
  bool end_array() override {
    auto& tensor = tensors_.back();
    if (at_ == At::shape) {
      tensor.shape = numbers_;
    } else {
      validate(numbers_.size() == 2, "{}: data_offsets of '{}' has {} values instead of 2", file_,
               shown(tensor.name), numbers_.size());
      validate(numbers_[0] <= numbers_[1],
               "{}: data_offsets of '{}' end at {}, before they begin at {}", file_,
               shown(tensor.name), numbers_[1], numbers_[0]);
      tensor.begin = numbers_[0];
      tensor.bytes = numbers_[1] - numbers_[0];
    }
    at_ = At::tensor;
    return true;
  }
  bool key(string_t& name) override {
    switch (at_) {
      case At::names:
        validate(names_.insert(name).second, "{}: tensor '{}' is described twice", file_,
                 shown(name));
        in_metadata_ = name == "__metadata__";
        if (!in_metadata_) {
          tensors_.emplace_back().name = name;
          has_dtype_ = has_shape_ = has_offsets_ = false;
        }
        break;
      case At::tensor:
        first_time(name);
        break;
      default:
        break;
    }
    key_ = name;
    return true;
  }
  bool string(string_t& text) override {
    if (at_ == At::metadata) return true;
    if (at_ != At::tensor || key_ != "dtype") return misplaced("a text");
    tensors_.back().dtype = text;
    return true;
  }
  bool number_unsigned(number_unsigned_t number) override {
    if (at_ != At::shape && at_ != At::offsets) return misplaced("a number");
    validate(number <= static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max()),
             "{}: {} of '{}' has {}, which is too large", file_, key_, shown(tensors_.back().name),
             number);
    validate(numbers_.size() < max_dims, "{}: {} of '{}' has more than {} values", file_, key_,
             shown(tensors_.back().name), max_dims);
    numbers_.push_back(static_cast<std::int64_t>(number));
    return true;
  }
  bool number_integer(number_integer_t) override { return misplaced("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return misplaced("a number that is not an integer");
  }
  bool boolean(bool) override { return misplaced("true or false"); }
  bool null() override { return misplaced("null"); }
  bool binary(binary_t&) override { return misplaced("binary data"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    fail(ExitCode::bad_input, "{}: the header is not JSON at its byte {}; is the file damaged?",
         file_, position);
  }

 private:
  enum class At { start, names, metadata, tensor, shape, offsets, end };

  [[noreturn]] bool misplaced(const char* what) const {
    const bool outside = at_ == At::start || at_ == At::names || at_ == At::metadata;
    fail(ExitCode::bad_input, "{}: the header has {} at '{}', which does not belong there", file_,
         what, shown(outside ? key_ : tensors_.back().name + "." + key_));
  }
  void first_time(const std::string& name) {
    auto* const seen = name == "dtype"          ? &has_dtype_
                       : name == "shape"        ? &has_shape_
                       : name == "data_offsets" ? &has_offsets_
                                                : nullptr;
    validate(seen != nullptr, "{}: tensor '{}' has an unknown property '{}'", file_,
             shown(tensors_.back().name), shown(name));
    validate(!*seen, "{}: tensor '{}' has its {} twice", file_, shown(tensors_.back().name), name);
    *seen = true;
  }

  const std::string& file_;
  At at_ = At::start;
  bool in_metadata_ = false;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  std::string key_;
  std::unordered_set<std::string> names_;
  std::vector<std::int64_t> numbers_;
  std::vector<StoredTensor> tensors_;
};

/// Returns the header length, after checking the file's first bytes.
std::int64_t header_length(std::span<const std::uint8_t> file, const std::string& name) {
  validate(file.size() >= 8, "{}: {} bytes are too few for a safetensors file; it is incomplete",
           name, file.size());
  std::uint64_t length = 0;
  for (unsigned i = 0; i < 8; ++i) length |= std::uint64_t{file[i]} << (8 * i);
  validate(length <= static_cast<std::uint64_t>(max_safetensors_header),
           "{}: a header of {} bytes; at most {} are read. Is this a safetensors file?", name,
           length, max_safetensors_header);
  validate(length >= 2 && length <= file.size() - 8,
           "{}: a header of {} bytes in a file of {}; the file is damaged or incomplete", name,
           length, file.size());
  validate(file[8] == '{', "{}: the header does not begin with {{; is this a safetensors file?",
           name);
  return static_cast<std::int64_t>(length);
}

/// Returns the size implied by shape and dtype.
std::int64_t expected_bytes(const StoredTensor& tensor, const std::string& file) {
  std::int64_t bytes = bytes_of_dtype(tensor.dtype);
  validate(bytes > 0, "{}: tensor '{}' has the unknown dtype '{}'", file, shown(tensor.name),
           shown(tensor.dtype));
  // A zero anywhere makes it empty, even if the other sizes overflow.
  if (std::ranges::find(tensor.shape, 0) != tensor.shape.end()) return 0;
  for (const auto size : tensor.shape)
    validate(!__builtin_mul_overflow(bytes, size, &bytes),
             "{}: the shape of tensor '{}' is too large for any file", file, shown(tensor.name));
  return bytes;
}

/// Checks that the tensors fill the `data` bytes after the header exactly.
void check_layout_is_dense(const std::vector<StoredTensor>& tensors, std::int64_t data,
                           const std::string& file) {
  std::vector<const StoredTensor*> by_place;
  for (const auto& tensor : tensors) by_place.push_back(&tensor);
  std::ranges::sort(by_place, [](const auto* a, const auto* b) {
    return std::pair(a->begin, a->bytes) < std::pair(b->begin, b->bytes);
  });
  std::int64_t at = 0;
  for (const auto* tensor : by_place) {
    const auto bytes = expected_bytes(*tensor, file);
    validate(tensor->bytes == bytes, "{}: tensor '{}' has {} bytes where its shape makes {}", file,
             shown(tensor->name), tensor->bytes, bytes);
    validate(tensor->begin == at, "{}: tensor '{}' begins at byte {} of the data instead of {}: {}",
             file, shown(tensor->name), tensor->begin, at,
             tensor->begin < at ? "tensors overlap" : "there is a gap");
    validate(bytes <= data - at,
             "{}: tensor '{}' ends at byte {} of {} of the data; the file is incomplete", file,
             shown(tensor->name), at + bytes, data);
    at += bytes;
  }
  validate(at == data, "{}: {} bytes of data where the tensors have {}; the file is damaged", file,
           data, at);
}

/// Returns true for a plain file name: an index may only name files in its own folder.
bool is_plain_name(const std::string& name) {
  return name.ends_with(".safetensors") && name.size() <= 255 && name[0] != '.' &&
         std::ranges::all_of(name, [](char c) {
           const auto code = static_cast<unsigned char>(c);
           return code > 0x20 && code != 0x7f && c != '/' && c != '\\';
         });
}

}  // namespace

std::int64_t StoredTensor::numel() const {
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  std::int64_t numel = 1;
  for (const auto size : shape) numel *= size;
  return numel;
}

std::string shown(std::string_view name) {
  std::string text;
  for (const char c : name.substr(0, 120)) {
    const auto code = static_cast<unsigned char>(c);
    text += code < 0x20 || code >= 0x7f ? '?' : c;
  }
  return name.size() > 120 ? text + "..." : text;
}

std::vector<StoredTensor> parse_safetensors(std::span<const std::uint8_t> file,
                                            const std::string& name) {
  const auto length = header_length(file, name);
  const auto header = file.subspan(8, static_cast<std::size_t>(length));
  // The parser would treat it as the end.
  validate(std::ranges::find(header, 0) == header.end(),
           "{}: the header is not JSON: it has a zero", name);
  HeaderReader reader(name);
  nlohmann::json::sax_parse(header.begin(), header.end(), &reader);
  auto tensors = reader.take();
  check_layout_is_dense(tensors, std::ssize(file) - 8 - length, name);
  for (auto& tensor : tensors) tensor.begin += 8 + length;
  return tensors;
}

std::string safetensors_header(std::vector<StoredTensor>& tensors) {
  // Transformers requires the metadata to say that the layout is PyTorch's.
  nlohmann::ordered_json header{{"__metadata__", {{"format", "pt"}}}};
  std::int64_t at = 0;
  for (auto& tensor : tensors) {
    tensor.begin = at;
    tensor.bytes = tensor.numel() * bytes_of_dtype(tensor.dtype);
    at += tensor.bytes;
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, at}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (unsigned i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  for (auto& tensor : tensors) tensor.begin += std::ssize(text) + 8;
  return length + text;
}

std::map<std::string, std::string> parse_weight_map(const std::string& text,
                                                    const std::string& name) {
  const auto json = parse_json_object(text, name);
  const auto found = json.find("weight_map");
  validate(found != json.end() && found->is_object(), "{}: it has no weight_map", name);
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : found->items()) {
    validate(file.is_string() && is_plain_name(file.get_ref<const std::string&>()),
             "{}: weight_map places '{}' in {}, which is not the plain name of a .safetensors file",
             name, shown(tensor), shown(file.dump(-1, ' ', true)));
    files[tensor] = file.get<std::string>();
  }
  validate(!files.empty(), "{}: its weight_map is empty", name);
  return files;
}

}  // namespace llamesh::checkpoint
