#include "core/json.hpp"

#include <gtest/gtest.h>

#include "core/hash.hpp"
#include "support.hpp"

namespace llamesh {
namespace {

std::string refusal(std::string_view text) {
  return test::error_of([&] { parse_json(text, "a.json"); });
}

TEST(Json, SaysWhereItIsMalformed) {
  EXPECT_EQ(parse_json(R"({"a": [1, 2.5, "x"]})", "a.json").at("a").size(), 3U);
  EXPECT_EQ(refusal("{\"a\": }"), "a.json: not valid JSON at byte 7");
  EXPECT_EQ(refusal("\"\xff\""), "a.json: not UTF-8 at byte 2");
  for (const char* half : {R"("\ud83d")", R"("\ud83dx")", R"("\ude00")"})
    EXPECT_NE(refusal(half).find("is half of a surrogate pair"), std::string::npos) << half;
  EXPECT_EQ(refusal("[1e999]"), "a.json: not valid JSON: a number is out of range");
  EXPECT_EQ(refusal({"{}\0{", 4}), "a.json: not valid JSON: there is a NUL at byte 3");
}

TEST(Json, IsNotNestedDeeply) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  parse_json(nested(32), "a.json");
  EXPECT_EQ(refusal(nested(1'000'000)), "a.json: nested more than 32 deep");
}

TEST(Json, IntegersAreNothingElse) {
  const auto integer = [](const char* text) {
    return to_integer(nlohmann::json::parse(text), -5, 1'000'000);
  };
  EXPECT_EQ(integer("-5"), -5);
  EXPECT_EQ(integer("1000000"), 1'000'000);
  for (const char* text : {"-6", "1000001", "18446744073709551615", "1e300", "1.0", "true", "null",
                           "\"1\"", "[1]", "{}"})
    EXPECT_NE(test::error_of([&] { integer(text); }).find("an integer of -5 to 1000000 belongs"),
              std::string::npos)
        << text;
}

TEST(Hash, ReadsWhatItWrites) {
  for (const std::uint64_t hash : {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{0xABC}})
    EXPECT_EQ(from_hex(to_hex(hash)), hash);
  EXPECT_EQ(to_hex(0xABC), "0000000000000abc");
  for (const char* text :
       {"", "abc", "0x00000000000abc", "-000000000000abc", "0000000000000abg", "00000000000000abc"})
    EXPECT_NE(test::error_of([&] { from_hex(text); }).find("is no hash"), std::string::npos);
}

}  // namespace
}  // namespace llamesh
