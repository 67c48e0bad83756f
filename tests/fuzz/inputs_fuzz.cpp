// For any input file or override, the answer is inputs that can be written and read again, or a
// user error.
#include <cstddef>
#include <cstdint>
#include <string>

#include "answer.hpp"
#include "config/inputs.hpp"
#include "config/tree.hpp"

namespace {

namespace config = llamesh::config;

/// Returns true if the text names other files; it is then only parsed, so that the fuzzer opens
/// none.
bool names_files(const std::string& text) {
  const auto root = config::parse_tree(text, "fuzzed");
  const auto* model = root.find("model");
  const auto* sharding = root.find("sharding");
  const auto* spec = sharding != nullptr ? sharding->find("spec") : nullptr;
  return (model != nullptr && (model->find("hf") != nullptr || model->find("file") != nullptr)) ||
         (spec != nullptr && spec->kind == config::Node::Kind::scalar);
}

void read_inputs(const std::string& text) {
  if (names_files(text)) return;
  const auto written = config::to_yaml(config::parse_inputs(text, "fuzzed", {}));
  llamesh::test::expect(config::to_yaml(config::parse_inputs(written, "written", {})) == written,
                        "the inputs do not survive being written");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  llamesh::test::expect_an_answer([&] { read_inputs(text); });
  llamesh::test::expect_an_answer([&] {
    auto root = config::parse_tree("model: {hidden_size: 8}\ndata: {train: [a, b]}\n", "fuzzed");
    config::apply_override(root, text);
  });
  return 0;
}
