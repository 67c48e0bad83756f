// For any model.safetensors.index.json, config.json or adapter_config.json, the answer is a map to
// plain file names, or a model or adapters that can be written and read again, or a user error.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "answer.hpp"
#include "checkpoint/models/safetensors.hpp"
#include "core/json.hpp"
#include "model/description/config_json.hpp"
#include "model/description/lora.hpp"

namespace {

using llamesh::test::expect;
namespace checkpoint = llamesh::checkpoint;
namespace model = llamesh::model;

void read_index(const std::string& text) {
  for (const auto& [tensor, file] : checkpoint::parse_weight_map(text, "fuzzed")) {
    const auto path = (std::filesystem::path("/folder") / file).lexically_normal();
    expect(path.parent_path() == "/folder" && path.filename() == file,
           "a file name leads out of the folder");
  }
}

void read_config(const std::string& text) {
  const auto config = model::parse_config_json(text, "fuzzed");
  for (const char* dtype : {"", "bfloat16"}) {
    const auto written = model::to_config_json(config, dtype, text);
    const auto read = model::parse_config_json(written, "written");
    expect(model::to_config_json(read) == model::to_config_json(config),
           "the model does not survive being written");
  }
}

void read_adapters(const std::string& text) {
  const auto options_of = [](const std::string& json) {
    return model::parse_adapter_config(
        model::ConfigKeys(llamesh::parse_json_object(json, "fuzzed"), "fuzzed"));
  };
  const auto written = to_adapter_config(options_of(text)).dump();
  expect(to_adapter_config(options_of(written)).dump() == written,
         "the adapters do not survive being written");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  llamesh::test::expect_an_answer([&] { read_index(text); });
  llamesh::test::expect_an_answer([&] { read_config(text); });
  llamesh::test::expect_an_answer([&] { read_adapters(text); });
  return 0;
}
