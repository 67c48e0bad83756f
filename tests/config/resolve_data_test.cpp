#include <gtest/gtest.h>

#include <filesystem>

#include "config/inputs.hpp"
#include "support.hpp"
#include "temporary_folder.hpp"

namespace llamesh::config {
namespace {

/// Fixture for inputs as resolved by rank 0 from its disk. $ stands for the folder.
class ResolveData : public testing::Test {
 protected:
  ResolveData() {
    std::filesystem::create_directory(folder_.path("hf"));
    for (const char* name : {"a.txt", "b.txt"}) folder_.write(name, "text");
    folder_.write("c.json", "[]");
    folder_.write("ids.bin", "\xff\xfe\xfd\xfc");
  }
  Inputs resolve(std::string text, const std::vector<std::string>& overrides = {}) {
    for (std::size_t at = 0; (at = text.find('$', at)) != text.npos;)
      text.replace(at, 1, folder_.path().string());
    Inputs in = parse_inputs(text, "run.yaml", overrides);
    in.notes.clear();
    resolve_data(in, "run.yaml", overrides);
    return in;
  }
  std::string error(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return test::error_of([&] { resolve(text, overrides); });
  }
  const test::TemporaryFolder folder_;
};

TEST_F(ResolveData, DecidesTheFormat) {
  using enum data::Format;
  EXPECT_EQ(resolve("data: {train: $/a.txt}").data.format, text);
  EXPECT_EQ(resolve("data: {train: $/c.json}").data.format, jsonl);
  EXPECT_EQ(resolve("data: {train: $/ids.bin, token_dtype: uint16}").data.format, tokens);
  EXPECT_EQ(resolve("data: {train: [{files: $/a.txt}, {files: $/b.txt}]}").data.format, text);
  EXPECT_EQ(resolve("data: {train: $/none, format: random}").data.format, random);
}

TEST_F(ResolveData, NamesTheKeyOfWhatDoesNotFit) {
  EXPECT_EQ(error("data: {train: $/c.json, format: text}").find("run.yaml: data.train: '"), 0U);
  EXPECT_NE(error("data: {train: $/ids.bin}").find("run.yaml: data.train: '"), std::string::npos);
  EXPECT_NE(error("data: {train: $/ids.bin}").find("is not UTF-8 text"), std::string::npos);
  EXPECT_NE(error("data: {train: $/none.txt}").find("data.train: '"), std::string::npos);
  for (const char* format : {"text", "jsonl", "tokens", "megatron"})
    EXPECT_NE(error("data: {train: $/none, format: " + std::string(format) + "}")
                  .find("cannot be opened: No such file"),
              std::string::npos);
  EXPECT_NE(error("data: {train: $/a.txt, validation: $/c.json}")
                .find("data.validation: '" + folder_.path("a.txt") + "' holds text but '"),
            std::string::npos);
  EXPECT_NE(error("data: {train: $/ids.bin, token_dtype: uint16, document_mask: true}")
                .find("run.yaml: data.document_mask is true, but token ids do not mark"),
            std::string::npos);
  EXPECT_EQ(error("data: {train: $/a.txt, tokenizer: none}")
                .find("run.yaml: data.tokenizer: 'none' does not exist; give byte, "),
            0U);
}

TEST_F(ResolveData, RefusesFilesWhoseNamesAreNotUtf8) {
  folder_.write("caf\xe9.txt", "text");
  const auto text = error("data: {train: '$/*.txt'}");
  EXPECT_EQ(text.find("run.yaml: data.train: '"), 0U) << text;
  EXPECT_NE(text.find("' is not UTF-8 (byte "), std::string::npos) << text;
}

TEST_F(ResolveData, BlamesTheCommandLineForItsValues) {
  const std::string file = "data: {train: $/a.txt}";
  EXPECT_EQ(error(file, {"data.train=none"}).find("command line: data.train: 'none'"), 0U);
  EXPECT_EQ(error(file, {"data.tokenizer=none"}).find("command line: data.tokenizer: 'none'"), 0U);
  EXPECT_EQ(error(file, {"run.name=a/b"}).find("command line: run.name: 'a/b'"), 0U);
  EXPECT_EQ(error(file, {"data.train=" + folder_.path("ids.bin"), "data.token_dtype=uint16",
                         "data.packing=best_fit"})
                .find("command line: data.packing needs the ends of documents"),
            0U);
  EXPECT_EQ(error(file, {"evaluate.every_steps=2"}).find("command line: evaluate.every_steps"), 0U);
  EXPECT_EQ(error("data: {train: $/none}", {"data.tokenizer=byte"}).find("run.yaml: data.train"),
            0U);
}

TEST_F(ResolveData, TellsOfFoldersAndLists) {
  folder_.write("list", folder_.path("b.txt") + "\n");
  std::filesystem::create_directory(folder_.path("corpus"));
  folder_.write("corpus/d.txt", "text");
  const auto in = resolve("data: {train: [$/a.txt, $/corpus], validation: '@$/list'}");
  EXPECT_EQ(in.data.train, (std::vector{folder_.path("a.txt"), folder_.path("corpus/d.txt")}));
  EXPECT_EQ(in.data.validation, std::vector{folder_.path("b.txt")});
  ASSERT_EQ(in.notes.size(), 2U);
  EXPECT_EQ(in.notes[0].find("data.train: '" + folder_.path("corpus") + "' is a folder of 1 file"),
            0U);
  EXPECT_EQ(in.notes[1].find("data.validation: '@" + folder_.path("list") + "' is a list of"), 0U);
  // The shell needs no quotes around the word.
  EXPECT_EQ(resolve("data: {train: x}", {"data.train=@" + folder_.path("list")}).data.train,
            std::vector{folder_.path("b.txt")});
}

TEST_F(ResolveData, TellsOfTheChatTemplate) {
  const auto notes = [&](const std::string& more) {
    return resolve("data: {train: $/c.json" + more + "}").notes;
  };
  EXPECT_EQ(notes(""), std::vector<std::string>{
                           "data.chat_template: plain, as the tokenizer byte has no template"});
  EXPECT_TRUE(notes(", chat_template: plain").empty());
  folder_.write("tokenizer.json", "{}");
  folder_.write("tokenizer_config.json", R"({"chat_template": "x"})");
  EXPECT_EQ(notes(", tokenizer: $/tokenizer.json"),
            std::vector{"data.chat_template: the one in " + folder_.path("tokenizer.json") +
                        ", which python3's jinja2 applies to conversations"});
}

TEST_F(ResolveData, TakesTheTokenizerOfTheModel) {
  const std::string hf = "model: {hf: $/hf, load_weights: false, " +
                         std::string(
                             "hidden_size: 64, intermediate_size: 64, num_hidden_layers: 1, "
                             "num_attention_heads: 2, num_key_value_heads: 2, head_dim: 32, "
                             "vocab_size: 300, rms_norm_eps: 1e-5, rope_theta: 1e4, "
                             "rope_scaling: null, tie_word_embeddings: false, "
                             "initializer_range: 0.02}\n");
  EXPECT_EQ(resolve("data: {train: $/a.txt}").data.tokenizer, "byte");
  const auto none = resolve(hf + "data: {train: $/a.txt}");
  EXPECT_EQ(none.data.tokenizer, "byte");
  EXPECT_EQ(none.notes, std::vector{"model.hf " + folder_.path("hf") +
                                    " has no tokenizer: data.tokenizer is byte"});
  folder_.write("hf/tokenizer.json", "{}");
  const auto own = resolve(hf + "data: {train: $/a.txt}");
  EXPECT_EQ(own.data.tokenizer, folder_.path("hf"));
  EXPECT_EQ(own.notes, std::vector{"data.tokenizer: that of model.hf " + folder_.path("hf")});
  EXPECT_TRUE(resolve(hf + "data: {train: $/a.txt, tokenizer: $/hf/tokenizer.json}").notes.empty());
  const auto other = resolve(hf + "data: {train: $/a.txt, tokenizer: byte}");
  EXPECT_EQ(other.data.tokenizer, "byte");
  ASSERT_EQ(other.notes.size(), 1U);
  EXPECT_EQ(other.notes[0].find(
                "data.tokenizer is byte, but the model was trained with that of model.hf "),
            0U);
}

}  // namespace
}  // namespace llamesh::config
