#include "checkpoint/models/safetensors.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "core/error.hpp"
#include "hostile_files.hpp"

namespace llamesh::checkpoint {
namespace {

std::vector<StoredTensor> parse(const std::string& bytes) {
  return parse_safetensors({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()},
                           "f.safetensors");
}

/// Returns the error from reading, a one-line user error that begins with the file name.
std::string error_of(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const Error& error) {
    std::string what = error.what();
    EXPECT_EQ(error.code(), ExitCode::bad_input) << what;
    EXPECT_EQ(what.find("f.safetensors: "), 0U) << what;
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
    return what;
  }
  return "no error";
}

constexpr std::string_view two_tensors =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},)"
    R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   )";

TEST(Safetensors, ReadsWhatTheHeaderSays) {
  const auto tensors = parse(test::safetensors_bytes(two_tensors, std::string(20, 'x')));
  ASSERT_EQ(tensors.size(), 2U);
  EXPECT_EQ(tensors[0].name, "b");
  EXPECT_EQ(tensors[0].dtype, "BF16");
  EXPECT_EQ(tensors[0].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(tensors[0].begin, 8 + std::ssize(two_tensors) + 8);
  EXPECT_EQ(tensors[0].bytes, 12);
  EXPECT_EQ(tensors[1].numel(), 2);
  EXPECT_TRUE(parse(test::safetensors_bytes("{}", "")).empty());
  // Empty tensors and scalars are tensors.
  EXPECT_EQ(
      parse(test::safetensors_bytes(R"({"e":{"dtype":"F32","shape":[0,9],"data_offsets":[0,0]},)"
                                    R"("s":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})",
                                    "x"))
          .size(),
      2U);
}

TEST(Safetensors, WritesWhatItReads) {
  std::vector<StoredTensor> tensors{{"x", "F16", {3, 1}, 0, 0}, {"y\"\n", "F32", {2}, 0, 0}};
  const auto header = safetensors_header(tensors);
  EXPECT_EQ(header.size() % 8, 0U);
  const auto read = parse(header + std::string(14, '\0'));
  ASSERT_EQ(read.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(read[i].name, tensors[i].name);
    EXPECT_EQ(read[i].shape, tensors[i].shape);
    EXPECT_EQ(read[i].begin, tensors[i].begin);
    EXPECT_EQ(read[i].bytes, tensors[i].bytes);
  }
}

struct Bad {
  const char* what;
  std::string header;
  std::size_t data;
  const char* message;
};

std::string one(const std::string& properties) {
  return R"({"t":{)" + properties + "}}";
}

const std::vector<Bad>& bad_headers() {
  static const std::string deep(100000, '[');
  static const std::string deep_objects = [] {
    std::string text;
    for (int i = 0; i < 100000; ++i) text += R"({"a":)";
    return text;
  }();
  static const std::vector<Bad> table = {
      {"no object", "[]", 0, "does not begin with {"},
      {"a space first", " {}", 0, "does not begin with {"},
      {"cut off", R"({"t":{"dtype":"F32")", 0, "not JSON"},
      {"two objects", "{}{}", 0, "not JSON"},
      {"zero bytes behind", std::string("{}\0\0", 4), 0, "not JSON"},
      {"no UTF-8", "{\"\xff\xfe\":1}", 0, "not JSON"},
      {"deep lists", "{\"t\":" + deep, 0, "which does not belong there"},
      {"deep objects", deep_objects, 0, "unknown property 'a'"},
      {"deep metadata", R"({"__metadata__":{"a":{"b":1}}})", 0, "which does not belong there"},
      {"metadata of numbers", R"({"__metadata__":{"a":1}})", 0, "which does not belong there"},
      {"a tensor that is a number", R"({"t":7})", 0, "which does not belong there"},
      {"a tensor that is null", R"({"t":null})", 0, "which does not belong there"},
      {"no dtype", one(R"("shape":[1],"data_offsets":[0,4])"), 4, "lacks its dtype"},
      {"no shape", one(R"("dtype":"F32","data_offsets":[0,4])"), 4, "lacks its dtype, shape"},
      {"no offsets", one(R"("dtype":"F32","shape":[1])"), 4, "lacks its dtype, shape or data"},
      {"unknown property", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"x":"y")"), 4,
       "unknown property 'x'"},
      {"property twice", one(R"("dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4])"), 4,
       "dtype twice"},
      {"tensor twice",
       R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2, "described twice"},
      {"metadata twice", R"({"__metadata__":{},"__metadata__":{}})", 0, "described twice"},
      {"unknown dtype", one(R"("dtype":"F31","shape":[1],"data_offsets":[0,4])"), 4,
       "unknown dtype 'F31'"},
      {"no dtype's name", one(R"("dtype":"","shape":[1],"data_offsets":[0,4])"), 4,
       "unknown dtype ''"},
      {"dtype is a number", one(R"("dtype":4,"shape":[1],"data_offsets":[0,4])"), 4,
       "which does not belong there"},
      {"negative size", one(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4,
       "a negative number at 't.shape'"},
      {"size with a point", one(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), 4,
       "not an integer"},
      {"size beyond 64 bits",
       one(R"("dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4])"), 4,
       "not an integer"},
      {"size beyond 63 bits",
       one(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4])"), 4, "too large"},
      {"product overflows",
       one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0,
       "too large"},
      {"bytes overflow", one(R"("dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0])"),
       0, "too large"},
      {"too many dims",
       one(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])"), 1,
       "more than 16 values"},
      {"nested shape", one(R"("dtype":"F32","shape":[[1]],"data_offsets":[0,4])"), 4,
       "which does not belong there"},
      {"one offset", one(R"("dtype":"F32","shape":[1],"data_offsets":[4])"), 4, "1 values"},
      {"three offsets", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,4])"), 4, "3 values"},
      {"offsets in the wrong order", one(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4,
       "before they begin"},
      {"shorter than its shape", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4,
       "has 4 bytes where its shape makes 8"},
      {"longer than its shape", one(R"("dtype":"F16","shape":[1],"data_offsets":[0,4])"), 4,
       "has 4 bytes where its shape makes 2"},
      {"a hole at the start", one(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), 8,
       "there is a gap"},
      {"a hole between",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
       3, "there is a gap"},
      {"an overlap",
       R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, "overlap"},
      {"the same bytes twice",
       R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
       2, "overlap"},
      {"data beyond the tensors", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 5,
       "5 bytes of data where the tensors have 4"},
      {"data without tensors", "{}", 1, "1 bytes of data where the tensors have 0"},
      {"data that lacks", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 3,
       "incomplete"},
      {"data that lacks far",
       one(R"("dtype":"F32","shape":[1152921504606846976],"data_offsets":[0,4611686018427387904])"),
       3, "incomplete"},
      {"a name with a line break", "{\"a\\nb\":7}", 0, "'a?b'"},
  };
  return table;
}

TEST(Safetensors, RefusesBadHeaders) {
  for (const auto& bad : bad_headers()) {
    const auto error = error_of(test::safetensors_bytes(bad.header, std::string(bad.data, 'x')));
    EXPECT_NE(error.find(bad.message), std::string::npos) << bad.what << ": " << error;
    EXPECT_LT(error.size(), 400U) << bad.what;
  }
}

TEST(Safetensors, RefusesBadLengths) {
  const auto good = test::safetensors_bytes(two_tensors, std::string(20, 'x'));
  EXPECT_EQ(error_of(good), "no error");
  for (std::size_t length = 0; length < good.size(); ++length)  // truncated anywhere
    EXPECT_NE(error_of(good.substr(0, length)), "no error") << length << " bytes";
  EXPECT_NE(error_of(good + "x"), "no error");
  const auto with_length = [&](std::uint64_t length) {
    auto bytes = good;
    std::memcpy(bytes.data(), &length, 8);
    return error_of(bytes);
  };
  EXPECT_NE(with_length(100'000'001).find("at most 100000000 are read"), std::string::npos);
  EXPECT_NE(with_length(~std::uint64_t{0}).find("at most 100000000"), std::string::npos);
  EXPECT_NE(with_length(std::uint64_t{1} << 63U).find("at most 100000000"), std::string::npos);
  EXPECT_NE(with_length(100'000'000).find("in a file of"), std::string::npos);
  EXPECT_NE(with_length(good.size() - 7).find("in a file of"), std::string::npos);
  for (const std::uint64_t length : {0, 1, 2, 20}) EXPECT_NE(with_length(length), "no error");
}

/// Mutated bytes give either an error, or tensors that lie within the file.
TEST(Safetensors, MutationsEndInAnErrorOrAGoodHeader) {
  constexpr unsigned seed = 20240607;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto good = test::safetensors_bytes(two_tensors, std::string(20, 'x'));
  const std::string likely = "{}[]\",:0123456789-.eE\\ FBshapedtyo_\xff";
  int accepted = 0;
  for (int i = 0; i < 50000; ++i) {
    auto bytes = good;
    for (auto changes = 1 + random() % 3; changes > 0; --changes) {
      const auto at = random() % bytes.size();
      switch (random() % 3) {
        case 0:
          bytes[at] = likely[random() % likely.size()];
          break;
        case 1:
          bytes.erase(at, 1 + random() % 8);
          break;
        default:
          bytes.insert(at, good, random() % good.size(), random() % 40);
      }
      if (bytes.empty()) bytes = "x";
    }
    if (error_of(bytes) != "no error") continue;
    ++accepted;
    for (const auto& tensor : parse(bytes)) {
      ASSERT_GE(tensor.begin, 8) << bytes;
      ASSERT_LE(tensor.begin + tensor.bytes, std::ssize(bytes)) << bytes;
    }
  }
  EXPECT_GT(accepted, 0);  // a changed name does no harm
  EXPECT_LT(accepted, 25000);
}

TEST(StoredNumbers, EveryHalfIsReadAndWrittenBack) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    std::uint8_t bytes[2];
    std::memcpy(bytes, &half, 2);
    float value = 0;
    to_floats(StoredType::f16, bytes, {&value, 1});
    const int exponent = static_cast<int>(bits >> 10U & 31U);
    const double mantissa = bits & 1023U;
    double expected =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    if (exponent == 31)
      expected = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
    if (bits & 0x8000U) expected = -expected;
    ASSERT_TRUE(std::isnan(expected) ? std::isnan(value) : value == static_cast<float>(expected))
        << bits;
    EXPECT_EQ(from_floats(StoredType::f16, {&value, 1}, bytes), 0);
    std::uint16_t again = 0;
    std::memcpy(&again, bytes, 2);
    if (!std::isnan(value)) {
      ASSERT_EQ(again, half);
    }
  }
}

TEST(StoredNumbers, RoundToNearestEven) {
  const auto half_of = [](float value) {
    std::uint8_t bytes[2];
    from_floats(StoredType::f16, {&value, 1}, bytes);
    float back = 0;
    to_floats(StoredType::f16, bytes, {&back, 1});
    return back;
  };
  EXPECT_EQ(half_of(1.0F + 0x1p-11F), 1.0F);               // a tie, to even
  EXPECT_EQ(half_of(1.0F + 0x3p-11F), 1.0F + 0x1p-9F);     // a tie, to even
  EXPECT_EQ(half_of(1.0F + 0x1.1p-11F), 1.0F + 0x1p-10F);  // above a tie
  EXPECT_EQ(half_of(0x1p-25F), 0.0F);                      // a tie with zero
  EXPECT_EQ(half_of(0x1.1p-25F), 0x1p-24F);
  EXPECT_EQ(half_of(65519.0F), 65504.0F);
  const float large[] = {65520.0F, -1e9F, std::numeric_limits<float>::infinity()};
  std::uint8_t bytes[6];
  EXPECT_EQ(from_floats(StoredType::f16, large, bytes), 2);  // infinity is no loss
  EXPECT_EQ(from_floats(StoredType::bf16, large, bytes), 0);
  const float limit = std::numeric_limits<float>::max();
  EXPECT_EQ(from_floats(StoredType::bf16, {&limit, 1}, bytes), 1);
}

}  // namespace
}  // namespace llamesh::checkpoint
