#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "app/commands/commands.hpp"
#include "hostile_files.hpp"
#include "source_file.hpp"
#include "support.hpp"
#include "temporary_folder.hpp"

namespace llamesh::app {
namespace {

using Json = nlohmann::json;
using test::TemporaryFolder;

struct Printed {
  int code;
  Json json;
};

/// Returns a command's output, which must be one JSON object on one line.
template <class Command>
Printed printed(Command command) {
  testing::internal::CaptureStdout();
  const int code = command();
  const auto text = testing::internal::GetCapturedStdout();
  EXPECT_EQ(text.find('\n'), text.size() - 1) << text;
  return {code, Json::parse(text)};
}

/// Writes a file with one fp32 tensor, w.
std::string write_tensor(const TemporaryFolder& folder, const std::string& name,
                         const std::vector<float>& values) {
  const auto bytes = values.size() * sizeof(float);
  std::string data(bytes, '\0');
  std::memcpy(data.data(), values.data(), bytes);
  const auto header = fmt::format(R"({{"w":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{}]}}}})",
                                  values.size(), bytes);
  return folder.write(name, test::safetensors_bytes(header, data));
}

TEST(Json, DiffSaysHowTensorsDifferToTheLastDigit) {
  const TemporaryFolder folder;
  const auto a = write_tensor(folder, "a.safetensors", {1.0F, 0.1F});
  const auto b = write_tensor(folder, "b.safetensors", {1.0F, 0.3F});
  const auto same = printed([&] { return diff(a, a, Output::json); });
  EXPECT_EQ(same.code, 0);
  EXPECT_EQ(
      same.json,
      (Json{{"a", a}, {"b", a}, {"equal", true}, {"tensors", 1}, {"different", Json::array()}}));
  const auto other = printed([&] { return diff(a, b, Output::json); });
  EXPECT_EQ(other.code, 1);
  const double difference = static_cast<double>(0.3F) - static_cast<double>(0.1F);
  EXPECT_EQ(other.json["different"],
            Json::array({{{"name", "w"},
                          {"max_abs", difference},
                          {"max_relative", difference / static_cast<double>(0.3F)},
                          {"not_comparable", 0}}}));
  const auto longer = write_tensor(folder, "c.safetensors", {1.0F});
  EXPECT_EQ(printed([&] { return diff(a, longer, Output::json); }).json["different"],
            Json::array({{{"name", "w"}, {"shape_a", {2}}, {"shape_b", {1}}}}));
}

TEST(Json, InspectDescribesTensorsAndTokens) {
  const TemporaryFolder folder;
  const auto a = write_tensor(folder, "a.safetensors", {1.0F, 0.1F});
  const Json tensor{{"name", "w"}, {"dtype", "F32"}, {"shape", {2}}, {"elements", 2}};
  EXPECT_EQ(printed([&] { return inspect(a, Output::json); }).json,
            (Json{{"kind", "safetensors"},
                  {"path", a},
                  {"elements", 2},
                  {"tensors", Json::array({tensor})}}));
  std::string tokens(1024 + 6, '\0');
  const std::int32_t header[] = {20240520, 1, 3};
  std::memcpy(tokens.data(), header, sizeof header);
  const auto ids = folder.write("ids.bin", tokens);
  EXPECT_EQ(printed([&] { return inspect(ids, Output::json); }).json,
            (Json{{"kind", "tokens"}, {"path", ids}, {"tokens", 3}, {"dtype", "uint16"}}));
}

TEST(Json, InspectDescribesAMegatronPairByEitherFile) {
  const TemporaryFolder folder;
  const auto lines = folder.write("a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"c\"}\n");
  testing::internal::CaptureStdout();
  tokenize({"byte", {lines}, folder.path("pair.idx"), 1, ""});
  testing::internal::GetCapturedStdout();
  for (const char* name : {"pair.idx", "pair.bin"})
    EXPECT_EQ(printed([&] { return inspect(folder.path(name), Output::json); }).json,
              (Json{{"kind", "tokens"},
                    {"path", folder.path(name)},
                    {"tokens", 5},
                    {"dtype", "uint16"},
                    {"documents", 2}}));
}

TEST(Json, VerifyFindsCutFilesAndNumbersThatAreNotFinite) {
  const TemporaryFolder folder;
  const auto good = write_tensor(folder, "good.safetensors", {1.0F, 0.1F});
  const auto fine = printed([&] { return verify(good, Output::json); });
  EXPECT_EQ(fine.code, 0);
  EXPECT_EQ(
      fine.json,
      (Json{{"kind", "safetensors"}, {"path", good}, {"good", true}, {"damage", Json::array()}}));
  const auto bad = write_tensor(folder, "bad.safetensors", {std::nanf(""), 0.1F});
  const auto nan = printed([&] { return verify(bad, Output::json); });
  EXPECT_EQ(nan.code, 74);
  EXPECT_EQ(nan.json["damage"], Json::array({"w: 1 of 2 elements are not finite"}));
  std::filesystem::resize_file(good, std::filesystem::file_size(good) - 1);
  const auto cut = printed([&] { return verify(good, Output::json); });
  EXPECT_EQ(cut.code, 74);
  EXPECT_EQ(cut.json["damage"].size(), 1U) << cut.json;
}

TEST(Verify, ComparesAFoldersWeightsWithItsConfig) {
  const TemporaryFolder folder;
  const auto hf = folder.path("hf"), config_json = folder.path("hf/config.json");
  std::filesystem::copy(test::source_file("tests/model/golden/hf/gqa_8_2"), hf);
  const auto damage = [&] {
    const auto found = printed([&] { return verify(hf, Output::json); });
    EXPECT_EQ(found.code, found.json["good"] == true ? 0 : 74);
    return found.json["damage"];
  };
  EXPECT_EQ(damage(), Json::array());
  folder.write("hf/model.safetensors.index.json", R"({"weight_map": {}})");
  testing::internal::CaptureStderr();
  EXPECT_EQ(damage(), Json::array());
  EXPECT_NE(testing::internal::GetCapturedStderr().find(
                "model.safetensors.index.json; as transformers does, llamesh ignores the index "
                "and its files"),
            std::string::npos);
  auto config = Json::parse(std::ifstream(config_json));
  config["tie_word_embeddings"] = true;
  folder.write("hf/config.json", config.dump());
  EXPECT_EQ(damage(), Json::array({"config.json ties the head to the embedding, but lm_head.weight "
                                   "is not model.embed_tokens.weight; set tie_word_embeddings to "
                                   "false in it"}));
  std::filesystem::remove(config_json);
  EXPECT_EQ(damage(),
            Json::array({"'" + config_json + "' cannot be opened: No such file or directory"}));
}

TEST(Verify, RefusesWhatIsNoModel) {
  const TemporaryFolder folder;
  const auto verify_error = [](const std::string& name) {
    return test::error_of([&] { verify(name, Output::text); });
  };
  EXPECT_NE(verify_error(folder.path().string()).find("it has no manifest.json"),
            std::string::npos);
  EXPECT_NE(verify_error(folder.path("none")).find("does not exist"), std::string::npos);
  EXPECT_NE(verify_error("hf:" + folder.path().string()).find("is not a Hugging Face folder"),
            std::string::npos);
  folder.write("adapter_config.json", "{}");
  for (const auto& name : {folder.path().string(), "hf:" + folder.path().string()})
    EXPECT_NE(verify_error(name).find("adapters only; name its file adapter_model.safetensors"),
              std::string::npos);
  EXPECT_NE(verify_error(folder.write("a.txt", "some text")).find("is neither a .safetensors file"),
            std::string::npos);
}

}  // namespace
}  // namespace llamesh::app
