#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "model/description/config_json.hpp"
#include "source_file.hpp"

// Thousands of changed config.json files, and the models that transformers makes of them
// (tests/model/golden/config_mutations.py).

namespace llamesh::model {
namespace {

using Json = nlohmann::json;

/// Returns llamesh's own config.json of the same model, or null if the config is refused.
Json verdict(const Json& config) {
  try {
    return Json::parse(to_config_json(parse_config_json(config.dump(), "config.json")));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input);
    EXPECT_TRUE(std::string(error.what()).starts_with("config.json: ")) << error.what();
    return nullptr;
  }
}

TEST(ConfigMutations, AreReadAsByTransformersOrRefused) {
  std::ifstream file(test::source_file("tests/model/golden/config_mutations.json"));
  ASSERT_TRUE(file);
  const auto golden = Json::parse(file);
  int accepted = 0, refused = 0;
  for (const auto& [name, model] : golden.at("models").items()) {
    // The config may be only the text_config in another.
    const auto file_of = [whole = model.value("whole", Json())](Json config) {
      if (whole.is_null()) return config;
      auto with_config = whole;
      with_config["text_config"] = std::move(config);
      return with_config;
    };
    const auto original = verdict(file_of(model.at("config")));
    ASSERT_FALSE(original.is_null()) << name;
    for (const auto& mutation : model.at("mutations")) {
      auto config = model.at("config");
      for (const auto& [key, value] : mutation.at(0).items()) config[key] = value;
      for (const auto& key : mutation.at(1)) config.erase(key.get<std::string>());
      // Difference from the original's result; null: refused.
      auto expected = mutation.at(2);
      if (!expected.is_null()) expected = original.patch(expected);
      const auto actual = verdict(file_of(config));
      EXPECT_EQ(actual, expected) << name << ": " << mutation;
      ++(actual.is_null() ? refused : accepted);
    }
  }
  EXPECT_GT(accepted, 500);
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace llamesh::model
