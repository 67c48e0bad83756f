#include "app/models/end_tokens.hpp"

#include <gtest/gtest.h>

#include "data/data_options.hpp"
#include "source_file.hpp"
#include "temporary_folder.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::app {
namespace {

using Ids = std::vector<std::int32_t>;

class EndTokens : public testing::Test {
 protected:
  Ids of(data::ChatTemplate chat_template, const std::string& hf = "") {
    data::DataOptions data;
    data.tokenizer = qwen;
    data.chat_template = chat_template;
    return end_tokens(*tokenizer, data, hf);
  }
  std::int32_t id(const char* token) { return *tokenizer->special_token(token); }

  const std::string qwen = test::source_file("tests/tokenizer/golden/qwen.json");
  const std::shared_ptr<const tokenizer::Tokenizer> tokenizer = tokenizer::open_tokenizer(qwen);
  const test::TemporaryFolder folder;
};

TEST_F(EndTokens, AreEosAndTheEndOfAnAnswer) {
  const auto eos = *tokenizer->eos();
  EXPECT_EQ(of(data::ChatTemplate::plain), Ids{eos});
  EXPECT_EQ(of(data::ChatTemplate::qwen2), (Ids{eos, id("<|im_end|>")}));
  EXPECT_EQ(of(data::ChatTemplate::llama3), Ids{eos}) << "the tokenizer has no <|eot_id|>";
}

TEST_F(EndTokens, AreThoseOfTheModelsFolder) {
  const auto eos = *tokenizer->eos();
  const auto hf = folder.path().string();
  EXPECT_EQ(of(data::ChatTemplate::plain, hf), Ids{eos}) << "no file";
  folder.write("config.json", R"({"eos_token_id": 7})");
  EXPECT_EQ(of(data::ChatTemplate::plain, hf), (Ids{eos, 7}));
  folder.write("generation_config.json", R"({"eos_token_id": [9, 8, 100000]})");
  EXPECT_EQ(of(data::ChatTemplate::plain, hf), (Ids{eos, 9, 8}));
}

}  // namespace
}  // namespace llamesh::app
