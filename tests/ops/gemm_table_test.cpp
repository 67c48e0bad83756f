#include "ops/cuda/gemm/gemm_table.hpp"

#include <gtest/gtest.h>

#include "support.hpp"

namespace llamesh::ops::cuda {
namespace {

const GemmLibrary here{"GPU", "13.1.0"};

GemmTable small_table() {
  GemmProblem problem;
  problem.m = problem.n = problem.k = problem.a_stride = problem.b_stride = problem.c_stride = 8;
  problem.inputs = DType::bf16;
  problem.a_alignment = problem.b_alignment = problem.c_alignment = 16;
  GemmTable table{{problem, {.candidate = 3, .best_us = 1.5, .first_us = 2}}};
  problem.b_transposed = true;
  problem.inputs = DType::e4m3;
  table[problem] = {};
  problem.accumulates = true;
  table[problem] = {.candidate = 1};
  return table;
}

TEST(GemmTable, ReadsBackWhatItWrote) {
  for (const auto& table : {GemmTable{}, small_table()})
    EXPECT_EQ(parse_table(to_text(table, here), "t.json", here), table);
}

TEST(GemmTable, OfEarlierVersionsHasProductsThatDoNotAccumulate) {
  auto text = to_text(small_table(), here);
  const std::string key = "\"accumulates\": ";
  for (auto at = text.find(key); at != text.npos; at = text.find(key))
    text.erase(at, text.find('\n', at) - at);
  for (const auto& [problem, tuned] : parse_table(text, "t.json", here))
    EXPECT_FALSE(problem.accumulates);
}

TEST(GemmTable, IsAnotherGpusOrAnotherLibrarys) {
  const auto text = to_text(small_table(), here);
  for (const auto& there : {GemmLibrary{"GPU", "12.0.0"}, GemmLibrary{"other", "13.1.0"}}) {
    const auto said = test::error_of([&] { parse_table(text, "t.json", there); });
    EXPECT_NE(said.find("t.json was made on GPU with cuBLASLt 13.1.0"), std::string::npos) << said;
  }
}

TEST(GemmTable, TakesNoOtherValueForWhatItKnows) {
  const auto text = to_text(small_table(), here);
  const auto refused = [&](const std::string& key, const std::string& value) {
    auto changed = text;
    const auto at = changed.find("\"" + key + "\": ") + key.size() + 4;
    changed.replace(at, changed.find_first_of(",\n", at) - at, value);
    const auto said = test::error_of([&] { parse_table(changed, "t.json", here); });
    EXPECT_NE(said.find("t.json is not a GEMM table"), std::string::npos) << key << ": " << said;
  };
  refused("inputs", "\"fp4\"");
  refused("a_transposed", "1");
  refused("candidate", "8");
  for (const char* key : {"m", "a_stride", "a_alignment", "candidate"})
    for (const char* value : {"-1", "1e300", "1.5", "9223372036854775808"}) refused(key, value);
  refused("products", "3");
}

}  // namespace
}  // namespace llamesh::ops::cuda
