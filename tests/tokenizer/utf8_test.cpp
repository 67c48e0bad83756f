#include "core/utf8.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>

#include "tokenizer/tokenizer.hpp"

namespace llamesh::tokenizer {
namespace {

struct Replacement {
  std::string_view bytes, shown;
};

/// Text that CPython 3.11 makes from the bytes: bytes.decode("utf-8", errors="replace").
constexpr std::array<Replacement, 25> by_python = {{
    {"\x80", "\ufffd"},
    {"\xbf\xbf", "\ufffd\ufffd"},
    {"\xc3", "\ufffd"},
    {"\xc0\x80", "\ufffd\ufffd"},
    {"\xc1\xbf", "\ufffd\ufffd"},
    {"\xe4\xbd", "\ufffd"},
    {"\xe4\xbdz", "\ufffdz"},
    {"\xe4\xbd\xe4\xbd\xa0", "\ufffd\u4f60"},
    {"\xe0\x80\x80", "\ufffd\ufffd\ufffd"},
    {"\xe0\x9f\xbf", "\ufffd\ufffd\ufffd"},
    {"\xe0\xa0", "\ufffd"},
    {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},
    {"\xed\x9f", "\ufffd"},
    {"\xf0\x9f\x98", "\ufffd"},
    {"\xf0\x9f\x98\x80", "\U0001f600"},
    {"\xf0\x9f\x98\xf0\x9f", "\ufffd\ufffd"},
    {"\xf0\x8f\xbf\xbf", "\ufffd\ufffd\ufffd\ufffd"},
    {"\xf0\x90", "\ufffd"},
    {"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},
    {"\xf4\x8f\xbf", "\ufffd"},
    {"\xf5\x80\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},
    {"\xfe\xff", "\ufffd\ufffd"},
    {"a\xf1\x80\x80\xe1\x80\xc2"
     "b\x80"
     "c\x80\xbf"
     "d",
     "a\ufffd\ufffd\ufffdb\ufffdc\ufffd\ufffdd"},
    {"\xe4\xbd\xa0\xe5\xa5", "\u4f60\ufffd"},
    {"\xf0\x9fz\x98\x80", "\ufffdz\ufffd\ufffd"},
}};

std::string in_hex(std::string_view bytes) {
  std::string hex;
  for (const char byte : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return hex;
}

TEST(Utf8, InvalidBytesAreReplacedAsPythonDoes) {
  for (const auto& [bytes, shown] : by_python)
    EXPECT_EQ(replace_invalid_utf8(bytes), shown) << in_hex(bytes);
}

TEST(Utf8, AStreamOfSingleBytesIsReplacedAlike) {
  const auto tokenizer = open_tokenizer("byte");
  for (const auto& [bytes, shown] : by_python) {
    TextStream stream(*tokenizer);
    std::string text;
    for (const char byte : bytes) text += stream.push(static_cast<unsigned char>(byte));
    EXPECT_EQ(text + stream.finish(), shown) << in_hex(bytes);
  }
}

}  // namespace
}  // namespace llamesh::tokenizer
